"""Lines that join the arrivals of one collective on all ranks: who came last is where the line ends bold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from shardtoll.dashboards import human
from shardtoll.dashboards.figure import Columns, Figure

MOST: Final = 60
"""Collectives whose arrivals are joined at once; more hide the rest."""


def met_in(figure: Figure, points: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the meetings of the lit collectives, the first `MOST` of them."""
    table = figure.columns.get("calls", {})
    if "met" not in table:
        return []
    found: dict[int, None] = {}
    for trace, some in points.items():
        rects = figure.data[trace].get("rects")
        if rects and rects["of"] == "calls":
            found |= {table["met"][rects["pick"][point]]: None for point in some}
    return [number for number in found if number is not None][:MOST]


def met_at(figure: Figure, trace: int, point: int) -> list[int]:
    """Return the meeting of one rectangle; none where it has none."""
    if not 0 <= trace < len(figure.data):
        return []
    rects = figure.data[trace].get("rects")
    if not rects or rects["of"] != "calls" or not 0 <= point < len(rects["pick"]):
        return []
    return met_in(figure, {trace: [point]})


def arrivals(figure: Figure, meetings: Collection[int], colour: str) -> list[dict[str, Any]]:
    """Return a trace of lines through the arrivals of each meeting, and one of the last to arrive."""
    table = figure.columns.get("calls", {})
    wanted = set(meetings)
    if not wanted or "met" not in table:
        return []
    members: dict[int, list[int]] = {}
    for at, number in enumerate(table["met"]):
        if number in wanted:
            members.setdefault(number, []).append(at)
    xs: list[float | None] = []
    ys: list[float | None] = []
    lasts: list[int] = []
    for some in members.values():
        if len(some) < 2:
            continue
        some.sort(key=lambda at: table["row"][at])
        xs += [*(table["start"][at] for at in some), None]
        ys += [*(table["row"][at] for at in some), None]
        lasts.append(max(some, key=lambda at: table["start"][at]))
    if not lasts:
        return []
    line = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": {"color": colour, "width": 1.5}}
    end = {
        "type": "scatter",
        "mode": "markers",
        "x": [table["start"][at] for at in lasts],
        "y": [table["row"][at] for at in lasts],
        "marker": {
            "color": "#D55E00",
            "size": 8,
            "symbol": "diamond",
            "line": {"color": colour, "width": 1.5},
        },
        "hoverinfo": "text",
        "hovertext": [_late(table, members, at) for at in lasts],
    }
    return [
        {**line, "name": "arrivals of one collective", "hoverinfo": "skip", "showlegend": True},
        {**end, "name": "last to arrive", "showlegend": True},
    ]


def _late(table: Columns, members: Mapping[int, Sequence[int]], last: int) -> str:
    first = min(table["start"][at] for at in members[table["met"][last]])
    return f"last to arrive, {human.duration((table['start'][last] - first) * 1e6)} after the first"
