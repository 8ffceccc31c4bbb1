"""Figure: where each rank's step goes, as stacked bars that add up to its duration."""

from __future__ import annotations

from typing import Any

from shardtoll.dashboards import human, step_times
from shardtoll.dashboards.figure import PALETTE, TOP_LEGEND, Figure, height, hover, ms
from shardtoll.ledger import Report

COLOURS = {
    "compute_ns": PALETTE["green"],
    "exposed_comm_ns": PALETTE["vermillion"],
    "exposed_copy_ns": PALETTE["purple"],
    "idle_ns": PALETTE["sky"],
    "unattributed_ns": PALETTE["grey"],
}


def figure(report: Report) -> Figure:
    """Return one bar a rank, mean over its surveyed steps; nothing to draw where no step finished."""
    times = step_times.rank_times(report)
    if not times:
        return Figure([], {}, ["No step finished, so there is no time to divide."])
    worst = step_times.slowest(times)
    names = [f"rank {time.ranks[0]}{' (slowest)' if time is worst else ''}" for time in times]
    data: list[dict[str, Any]] = []
    for at, (part, words) in enumerate(step_times.PARTS):
        texts = []
        for name, time in zip(names, times, strict=True):
            value = time.parts_ns[at]
            lines = [f"<b>{name}</b>", f"{words}: {human.duration(value)}"]
            if value is not None:
                lines.append(f"{human.share(value, time.total_ns)} of {human.duration(time.total_ns)}")
            if part == "unattributed_ns":
                lines.append(f"of which capture: {human.duration(time.capture_ns)}")
            texts.append(hover(lines))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words,
                "y": names,
                # An unknown part has no bar; its hover text says so.
                "x": [None if (part_ns := time.parts_ns[at]) is None else ms(part_ns) for time in times],
                "hovertext": texts,
                "hovertemplate": "%{hovertext}<extra></extra>",
                "marker": {
                    "color": COLOURS[part],
                    # Not by colour alone.
                    "pattern": {
                        "shape": "/" if part == "exposed_comm_ns" else "",
                        "bgcolor": COLOURS[part],
                        "fgcolor": "#ffffff",
                        "size": 7,
                        "solidity": 0.2,
                    },
                },
            }
        )
    layout = {
        "barmode": "stack",
        "height": height(len(times)),
        "xaxis": {"title": {"text": "ms a step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout)
