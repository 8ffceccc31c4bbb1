"""Bars from one step to another, change by change: data for Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardtoll.dashboards.page.html.figure import (
    PALETTE,
    TOP_LEGEND,
    Figure,
    Marks,
    bars,
    height,
    hover,
    literal,
    ms,
)
from shardtoll.ledger.words import human

WHOLE: Final = "the step"
SHORTER: Final = "shorter by"
LONGER: Final = "longer by"
_STYLES: Final = {
    WHOLE: (PALETTE["blue"], ""),
    SHORTER: (PALETTE["green"], "\\"),
    LONGER: (PALETTE["vermillion"], "/"),
}
"""Colour and, not by colour alone, pattern."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A bar of the fall: a whole step, or the time that a change takes off the step before it."""

    name: str
    step_ns: int
    """The step after it."""
    number: int | None = None
    """Number of the finding that it fixes."""
    more: tuple[str, ...] = ()
    """Further lines of its hover text, in plain words."""


@dataclass(slots=True)
class _Bars:
    names: list[str] = field(default_factory=list)
    bases: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def waterfall(begins: Fall, falls: Sequence[Fall], ends: Sequence[Fall]) -> Figure:
    """Return bars from the time today over the time each change takes off, to the times in `ends`."""
    parts = {name: _Bars() for name in _STYLES}
    places: dict[int, tuple[str, int]] = {}
    _add(parts[WHOLE], begins, 0.0, ms(begins.step_ns), human.duration(begins.step_ns))
    before_ns = begins.step_ns
    for fall in falls:
        kind = SHORTER if fall.step_ns <= before_ns else LONGER
        if fall.number is not None:
            places[fall.number] = kind, len(parts[kind].names)
        change_ns = abs(fall.step_ns - before_ns)
        least_ns = min(fall.step_ns, before_ns)
        words = f"{kind} {human.duration(change_ns)}, then {human.duration(fall.step_ns)}"
        _add(parts[kind], fall, ms(least_ns), ms(change_ns), words)
        before_ns = fall.step_ns
    for end in ends:
        _add(parts[WHOLE], end, 0.0, ms(end.step_ns), human.duration(end.step_ns))
    drawn = [kind for kind, part in parts.items() if part.names]
    data = [_trace(kind, parts[kind]) for kind in drawn]
    marks: Marks = {number: {drawn.index(kind): [bar]} for number, (kind, bar) in places.items()}
    every = [literal(fall.name, 60) for fall in (begins, *falls, *ends)]
    layout = {
        "barmode": "overlay",
        "height": height(len(every)) + 40,
        "xaxis": {"title": {"text": "ms per step"}, "rangemode": "tozero"},
        "yaxis": {
            "autorange": "reversed",
            "type": "category",
            "automargin": True,
            # By the way down; by trace, whole steps would come first.
            "categoryorder": "array",
            "categoryarray": every,
        },
        "legend": TOP_LEGEND,
    }
    return Figure(data, layout, marks=marks)


def _add(part: _Bars, fall: Fall, base: float, value: float, words: str) -> None:
    part.names.append(literal(fall.name, 60))
    part.bases.append(base)
    part.values.append(value)
    lines = (literal(line, 200) for line in (words, *fall.more))
    part.texts.append(hover([f"<b>{literal(fall.name, 60)}</b>", *lines]))


def _trace(kind: str, part: _Bars) -> dict[str, Any]:
    colour, pattern = _STYLES[kind]
    return {**bars(kind, part.names, part.values, part.texts, colour, pattern), "base": part.bases}
