"""Lights up the marks of one finding in a Plotly figure: they keep their colours, the others fade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from shardtoll.dashboards.figure import Figure

GROUND: Final = "ground"
"""`meta` of a trace that the others stand on, and that never fades."""
OUTLINE: Final = "outline"
"""`meta` of a trace that is many rectangles in one, and can only fade whole."""
FADED: Final = 0.13
"""Opacity of what the picked finding does not speak of."""
_OUTLINE: Final = 4
"""Pixels."""

Points: TypeAlias = Mapping[int, Sequence[int]]
"""Trace of a figure -> its points: what one finding's marks are."""


def whole(figure: Figure, points: Points) -> dict[int, list[int]]:
    """Return the points with the other parts of the same collectives: their waiting and exposed time."""
    found = {trace: list(some) for trace, some in points.items()}
    calls = set()
    for trace, some in points.items():
        rects = figure.data[trace].get("rects")
        if rects and rects["of"] == "calls":
            calls |= {rects["pick"][point] for point in some}
    for at, drawn in enumerate(figure.data):
        rects = drawn.get("rects")
        if calls and at not in found and rects and rects["of"] == "calls":
            found[at] = [point for point, call in enumerate(rects["pick"]) if call in calls]
    return found


def lit(data: Sequence[Mapping[str, Any]], chosen: Points, outline: str) -> list[dict[str, Any]]:
    """Return the traces with these points lit; as they are where there are none.

    `outline` is the colour around cells and tiles, which cannot fade.
    """
    traces = [dict(trace) for trace in data]
    if not chosen:
        return traces
    found: list[dict[str, Any]] = []
    over: list[dict[str, Any]] = []
    for at, trace in enumerate(traces):
        points = sorted(chosen.get(at, ()))
        kind = trace.get("type", "scatter")
        if trace.get("meta") == GROUND:
            found.append(trace)
        elif trace.get("meta") == OUTLINE:
            found.append({**trace, "opacity": FADED})
        elif kind in ("bar", "scatter"):
            found.append(_selected(trace, points))
        elif kind == "treemap":
            found.append(_outlined(trace, points, len(trace["labels"]), outline))
        elif kind == "sankey":
            found.append(_links(trace, points))
        else:
            found.append(trace)
            if kind == "heatmap" and points:
                over.append(_cells(trace, points, outline))
    # Behind the others: marks name traces by their place.
    return found + over


def _selected(trace: dict[str, Any], points: list[int]) -> dict[str, Any]:
    faded = {"marker": {"opacity": FADED}}
    mode = str(trace.get("mode", ""))
    if trace.get("type") == "scatter" and ("lines" in mode or "none" in mode):
        # A line is a scale or a bound, not a record.
        return trace
    return {**trace, "selectedpoints": points, "unselected": faded, "selected": {"marker": {"opacity": 1}}}


def _outlined(trace: dict[str, Any], points: list[int], count: int, outline: str) -> dict[str, Any]:
    wanted = set(points)
    marker = dict(trace.get("marker", {}))
    marker["line"] = {
        "width": [_OUTLINE if at in wanted else 0.5 for at in range(count)],
        "color": [outline if at in wanted else "rgba(128,128,128,0.5)" for at in range(count)],
    }
    return {**trace, "marker": marker}


def _links(trace: dict[str, Any], points: list[int]) -> dict[str, Any]:
    link, wanted = dict(trace["link"]), set(points)
    count = len(link["value"])
    given = link.get("color")
    colours = list(given) if isinstance(given, (list, tuple)) else [given or "rgba(128,128,128,0.45)"] * count
    link["color"] = [
        colour if at in wanted else "rgba(128,128,128,0.12)" for at, colour in enumerate(colours)
    ]
    return {**trace, "link": link}


def _cells(trace: dict[str, Any], points: list[int], outline: str) -> dict[str, Any]:
    """Return squares over a heat map's cells; a cell's number is row * columns + column."""
    rows = trace["z"]
    columns = len(rows[0]) if len(rows) else 0
    xs = list(trace.get("x", range(columns)))
    ys = list(trace.get("y", range(len(rows))))
    places = [divmod(point, columns) for point in points] if columns else []
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [xs[column] for _, column in places],
        "y": [ys[row] for row, _ in places],
        "marker": {"symbol": "square-open", "size": 11, "color": outline, "line": {"width": 2}},
        "hoverinfo": "skip",
        "showlegend": False,
        "name": "picked",
    }
