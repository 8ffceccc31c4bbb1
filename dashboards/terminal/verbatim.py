"""Code and commands on a terminal: each of their lines stays one line, so that it can be copied."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

from shardtoll.dashboards.words.text import clean


class Verbatim:
    """A rich renderable of clean text whose lines are never broken.

    A line longer than the terminal goes on at its left edge, where a terminal joins it when it is copied.
    `Screen` prints such lines whole; another console may cut them.
    """

    def __init__(self, text: str, style: str = "", indent: int = 0) -> None:
        self.plain = clean(text, lines=True)
        self._style = style
        self._indent = indent * " "

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = console.get_style(self._style)
        for line in self.plain.split("\n"):
            yield Segment(f"{self._indent}{line}".rstrip(), style)
            yield Segment.line()
