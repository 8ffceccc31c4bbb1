"""Figures of a comparison: what a step divides into before and after, and changes with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardtoll.dashboards import compare_rows, human
from shardtoll.dashboards.figure import PALETTE, TOP_LEGEND, Figure, Strings, height, hover, literal, ms
from shardtoll.ledger.comparison import Change, Comparison

MOST: Final = 24
"""Modules and collectives in the figure of changes: those that changed most."""
_COLOURS: Final = {
    "computing": PALETTE["green"],
    "moving": PALETTE["vermillion"],
    "waiting": PALETTE["orange"],
    "copies": PALETTE["purple"],
    "idle": PALETTE["sky"],
}
_MARKS: Final = {
    "changed": (PALETTE["vermillion"], "diamond"),
    "no change": (PALETTE["grey"], "circle"),
}


def anatomy(found: Comparison) -> Figure:
    """Return a bar for each run; the parts of a bar add up to its step."""
    if found.step.before is None or found.step.after is None or not found.parts:
        return Figure([], {}, ["One of the runs has no timed step to divide."])
    names = ["before", "after"]
    data: list[dict[str, Any]] = []
    for part in found.parts:
        if part.before is None or part.after is None:
            # It is in the last part, which is named for it.
            continue
        values = [part.before, part.after]
        texts = [
            hover([f"<b>{name}</b>", f"{literal(part.name)}: {human.duration(value)}",
                   f"{human.share(value, whole)} of {human.duration(whole)}"])
            for name, value, whole in zip(names, values, (found.step.before, found.step.after), strict=True)
        ]  # fmt: skip
        colour = _COLOURS.get(part.name, PALETTE["grey"])
        pattern = {"shape": "/" if part.name in ("moving", "waiting") else "", "bgcolor": colour,
                   "fgcolor": "#ffffff", "size": 7, "solidity": 0.2}  # fmt: skip
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part.name,
                "y": names,
                "x": [ms(value) for value in values],
                "hovertext": texts,
                "hovertemplate": "%{hovertext}<extra></extra>",
                # Not by colour alone.
                "marker": {"color": colour, "pattern": pattern},
            }
        )
    layout = {
        "barmode": "stack",
        "height": height(2, each=50),
        "xaxis": {"title": {"text": "ms a step, mean of ranks"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout)


def changes(found: Comparison) -> Figure:
    """Return each time's change with the interval that holds it; those beyond noise are marked."""
    rows = _rows(found)
    if not rows:
        return Figure([], {}, ["No time has an interval: there are too few steps."])
    strings = Strings()
    names = [f"{number}. {literal(name, 60)}" for number, (name, _) in enumerate(rows, start=1)]
    data = []
    for kind, (colour, symbol) in _MARKS.items():
        picked = [
            (name, one)
            for name, (_, one) in zip(names, rows, strict=True)
            if one.changed == (kind == "changed")
        ]
        if not picked:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "beyond noise" if kind == "changed" else "within noise",
                "x": [ms(one.difference or 0.0) for _, one in picked],
                "y": [name for name, _ in picked],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [ms((one.high or 0.0) - (one.difference or 0.0)) for _, one in picked],
                    "arrayminus": [ms((one.difference or 0.0) - (one.low or 0.0)) for _, one in picked],
                    "color": colour,
                },
                "marker": {"color": colour, "symbol": symbol, "size": 10},
                "hovertext": [strings.add(_words(one)) for _, one in picked],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    layout = {
        "height": height(len(rows), each=26),
        "xaxis": {"title": {"text": "change, ms a step"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True,
                  "categoryorder": "array", "categoryarray": names},
        "legend": TOP_LEGEND,
    }  # fmt: skip
    return Figure(data, layout, strings=strings.all())


def _rows(found: Comparison) -> list[tuple[str, Change]]:
    """Return the step, its parts, and the modules and collectives that changed most."""
    whole = [("the step", found.step), *((part.name, part) for part in found.parts)]
    others = [(one.name, one.time) for one in found.modules]
    others += [(f"{compare_rows.site(one)[0]}", one.exposed) for one in found.sites]
    others = [(name, one) for name, one in others if one.low is not None and one.difference]
    others.sort(key=lambda row: (not row[1].changed, -abs(row[1].difference or 0.0)))
    kept: Sequence[tuple[str, Change]] = others[:MOST]
    return [(name, one) for name, one in (*whole, *kept) if one.low is not None]


def _words(one: Change) -> str:
    name, was, now, by, interval, least, verdict = compare_rows.change(one)
    lines = [f"<b>{literal(name)}</b>", f"{was} -> {now}: {by}", f"interval: {interval}",
             f"least change that is seen: {least}", verdict]  # fmt: skip
    return hover([lines[0], *(literal(line) for line in lines[1:])])
