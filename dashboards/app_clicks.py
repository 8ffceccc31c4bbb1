"""Which mark of a figure was clicked, out of what the browser tells of the click."""

from __future__ import annotations

from typing import Any

from shardtoll.dashboards.figure import Figure


def clicked_at(clicked: Any, figure: Figure) -> tuple[int, int] | None:
    """Return trace and point of what Plotly says was clicked; None where it says neither.

    A heat map's point is row * columns + column. Plotly gives both, but Dash drops lists of a point: the
    names of the cell's column and row are left, which each stand once.
    """
    try:
        point = clicked["points"][0]
        trace = int(point["curveNumber"])
        drawn = figure.data[trace] if 0 <= trace < len(figure.data) else {}
        if drawn.get("type") != "heatmap":
            return trace, int(point["pointNumber"])
        rows = drawn["z"]
        columns = len(rows[0])
        row = list(drawn.get("y", range(len(rows)))).index(point["y"])
        column = list(drawn.get("x", range(columns))).index(point["x"])
        # What lies over a heat map of the same cells, as those not known, has no marks of its own.
        first = next(at for at, one in enumerate(figure.data) if one.get("type") == "heatmap")
        return first, row * columns + column
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
