"""What the page's figures share: the palette, and text that Plotly shows letter for letter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from shardtoll.dashboards.text import clip

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
"""Okabe and Ito, Color Universal Design (2008), told apart by colour-blind readers; grey is ours."""

ASKED: Final = {"implicit": PALETTE["vermillion"], "explicit": PALETTE["blue"], "unknown": PALETTE["grey"]}

ASKED_WORDS: Final = {
    "implicit": "implicit",
    "explicit": "explicit",
    "unknown": "origin unknown",
}
"""What a legend says for each; the sections of the page explain them with `ASKED_LEAD`."""

ASKED_LEAD: Final = (
    "Implicit: the framework inserted the collective. Explicit: code asked for it. Origin unknown: the "
    "record does not tell, as in traces of other tools."
)

TOP_LEGEND: Final = {
    "orientation": "h",
    "yref": "container",
    "y": 1,
    "yanchor": "top",
    "traceorder": "normal",
}
"""A legend over the figure, which stays there when the window is resized."""

Columns: TypeAlias = dict[str, list[Any]]
"""A table by columns, all of one length."""

Marks: TypeAlias = dict[int, dict[int, list[int]]]
"""Number of a finding on the bill -> trace of a figure -> its points (bars, cells, links, rectangles) that
show what the finding speaks of."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A Plotly figure as plain data, and what its reader must be told in words."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """Sentences under the figure: what was folded, what is missing."""
    strings: list[str] = field(default_factory=list)
    """Hover texts; a trace's `hovertext` holds positions in this list."""
    columns: dict[str, Columns] = field(default_factory=dict)
    """Tables that the page's script draws from, where a trace has `rects` instead of points."""
    marks: Marks = field(default_factory=dict)
    """What is lit up when a finding is picked."""

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
