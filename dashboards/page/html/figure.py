"""Common parts of the page's figures: the palette, and text that Plotly shows letter for letter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from shardtoll.dashboards.words.text import clip

PALETTE: Final = {
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#8A8A8A",
}
"""Okabe and Ito, Color Universal Design (2008): colour-blind readers can distinguish these; grey is ours."""

ASKED: Final = {"implicit": PALETTE["vermillion"], "explicit": PALETTE["blue"], "unknown": PALETTE["grey"]}

ASKED_WORDS: Final = {
    "implicit": "implicit",
    "explicit": "explicit",
    "unknown": "origin unknown",
}
"""Text of a legend for each; the sections of the page explain them with `ASKED_LEAD`."""

ASKED_LEAD: Final = (
    "Implicit: the framework inserted the collective. Explicit: code asked for it. Origin unknown: not on "
    "record, as in traces of other tools."
)

TOP_LEGEND: Final = {
    "orientation": "h",
    "yref": "container",
    "y": 1,
    "yanchor": "top",
    "traceorder": "normal",
}
"""A legend over the figure, which stays there when the window is resized."""

_FEW_DECADES: Final = 3
_MANY_DECADES: Final = 12
"""With more of them not every power of ten gets a number: they would lie on each other."""

LEAST, MOST = 1e-30, 1e30
"""Range of values that are drawn at all: beyond lie damaged numbers only, whose powers no axis can show."""

Columns: TypeAlias = dict[str, list[Any]]
"""A table by columns, all of one length."""

Marks: TypeAlias = dict[int, dict[int, list[int]]]
"""Number of a finding on the bill -> trace of a figure -> its points for the finding (bars, cells, links,
rectangles)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A Plotly figure as plain data, and the sentences that its reader needs."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """Sentences under the figure: folded and missing parts."""
    strings: list[str] = field(default_factory=list)
    """Hover texts; a trace's `hovertext` holds positions in this list."""
    columns: dict[str, Columns] = field(default_factory=dict)
    """Tables that the page's script draws from, if a trace has `rects` instead of points."""
    marks: Marks = field(default_factory=dict)
    """Parts that are lit up when a finding is picked."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.data


class Strings:
    """Collects texts and gives each a number; equal texts get the same one."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the text's number."""
        return self._at.setdefault(text, len(self._at))

    def all(self) -> list[str]:
        """Return the texts by their numbers."""
        return list(self._at)


def literal(value: object, most: int = 120) -> str:
    """Return the text so that Plotly, which reads a few HTML tags and entities, shows it as it is."""
    text = clip(value, most)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def hover(lines: Iterable[str]) -> str:
    """Return already literal lines as one hover text."""
    return "<br>".join(lines)


def ms(ns: float) -> float:
    """Return ns as ms, rounded to the ns so that equal numbers have equal bytes."""
    return round(ns / 1e6, 6)


def height(rows: int, each: int = 30, around: int = 110) -> int:
    """Return a figure's height in pixels for that many rows; many rows get less each."""
    return around + min(rows * each, 360 + rows * 6)


def drawable(value: float | None) -> bool:
    """Whether the number has a place on such an axis: known, above zero, neither NaN nor beyond measure."""
    return value is not None and LEAST <= value <= MOST


def log_axis(title: str, values: Sequence[float], words: Callable[[float], str]) -> dict[str, Any]:
    """Return a log axis with a tick at each power of ten. If there are few of those, it has ticks at 2 and 5
    too, and within one power at every digit.

    Values that are not `drawable` are left out; without any the axis goes from 1 to 10.
    """
    values = [value for value in values if drawable(value)] or [1.5, 8.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = [_tick_beyond(min(values), -1), _tick_beyond(max(values), 1)]
    between: Sequence[int] = (1, 2, 5) if high - low <= _FEW_DECADES else (1,)
    if span[1] <= 10 * span[0]:
        between = range(1, 10)
    powers = range(low - 3, high + 4, max(1, math.ceil((high - low) / _MANY_DECADES)))
    # Beyond the data too, for those who zoom out.
    ticks = [float(f"{times}e{power}") for power in powers for times in between]
    return {
        "type": "log",
        "title": {"text": title, "standoff": 12},
        "automargin": True,
        # Plotly fits the range to the data, which may lie between two ticks: then the axis had no number.
        "range": [math.log10(span[0] * 0.97), math.log10(span[1] * 1.03)],
        "tickvals": ticks,
        # `10 kB`, not `10.0 kB`: a tick is exact.
        "ticktext": [words(tick).replace(".00 ", " ").replace(".0 ", " ") for tick in ticks],
    }


def _tick_beyond(value: float, way: int) -> float:
    """Return the next of 1, 2, 5, 10, 20, ... that leaves a tenth of room below (-1) or above (1) a value."""
    power = math.floor(math.log10(value))
    ticks = [float(f"{times}e{exponent}") for exponent in range(power - 1, power + 3) for times in (1, 2, 5)]
    if way < 0:
        return max(tick for tick in ticks if tick <= value / 1.1)
    return min(tick for tick in ticks if tick >= value * 1.1)


def bars(
    name: str,
    names: Sequence[str],
    values: Sequence[float | None],
    texts: Sequence[str],
    colour: str,
    pattern: str,
    ink: str = "#ffffff",
) -> dict[str, Any]:
    """Return a trace of horizontal bars; a pattern, drawn in `ink`, distinguishes it without colour too."""
    shape = {"shape": pattern, "bgcolor": colour, "fgcolor": ink, "size": 7, "solidity": 0.2}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(names),
        # An unknown value has no bar; its hover text says so.
        "x": list(values),
        "hovertext": list(texts),
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": colour, "pattern": shape},
    }
