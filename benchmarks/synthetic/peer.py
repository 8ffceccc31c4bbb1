"""The same roofline and timeline as users of plotly would write them: a mark a call, a shape a collective."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from plotly import graph_objects
from plotly.subplots import make_subplots

from shardtoll.ledger import Report

_COLOURS = {True: "#D55E00", False: "#0072B2", None: "#8A8A8A"}


def write(report: Report, path: Path) -> None:
    """Write a self-contained page with a mark and a rectangle for each collective that was timed."""
    table = report.tables["collectives"]
    timed = table.filter(pc.and_(table["start_ns"].is_valid(), table["duration_ns"].is_valid()))
    figure = make_subplots(rows=2, cols=1, subplot_titles=("roofline", "timeline"))
    figure.add_trace(
        graph_objects.Scattergl(
            x=timed["message_bytes"].to_numpy(),
            y=timed["busbw_gbps"].to_numpy(),
            mode="markers",
            text=timed["source"].to_pylist(),
        ),
        row=1,
        col=1,
    )
    columns = [timed[name].to_pylist() for name in ("rank", "start_ns", "duration_ns", "implicit")]
    shapes = [
        {
            "type": "rect",
            "xref": "x2",
            "yref": "y2",
            "x0": start / 1e6,
            "x1": (start + lasted) / 1e6,
            "y0": rank - 0.4,
            "y1": rank + 0.4,
            "fillcolor": _COLOURS[implicit],
        }
        for rank, start, lasted, implicit in zip(*columns, strict=True)
    ]
    first, last = pc.min(timed["start_ns"]).as_py() / 1e6, pc.max(timed["start_ns"]).as_py() / 1e6
    figure.add_trace(graph_objects.Scatter(x=[first, last], y=[0, 0], mode="markers"), row=2, col=1)
    figure.update_layout(shapes=[*figure.layout.shapes, *shapes])
    figure.write_html(path, include_plotlyjs=True)
