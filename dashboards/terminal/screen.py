"""The terminal that every command prints to: no line ends between a figure and its unit.

rich ends lines at any space, also at one that must not be broken. So spaces inside figures are held by
another character while rich divides the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.containers import Lines
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

_UNITS: Final = "[nµm]?s|min|h|d|days?|[kMGTP]?B(?:/s)?|[KMG]iB|[kMGTPE]?FLOPs?(?:/s)?|%|times|W"
_INSIDE: Final = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?:/step)?(?![\w/]))|\u00a0")
_FIGURE: Final = re.compile(r"[-+~<>≤≥≈]?\d\S*")
_HELD: Final = "\ue000"
"""One column wide and no space. `clean` writes it out in others' text."""


class Screen(Console):
    """A console without colours of its own for numbers, which keeps figures with their units."""

    def __init__(self, width: int | None = None, **more: Any) -> None:
        super().__init__(width=width, highlight=False, **more)

    def print(self, *objects: Any, **more: Any) -> None:
        """Print; what does not fit is not cut off, as a cut command cannot be copied."""
        super().print(*objects, **{"crop": False, **more})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, text with its figures whole."""
        if isinstance(renderable, Table):
            for column in renderable.columns:
                # rich narrows such a column last: a cut figure is another number.
                column.no_wrap = column.no_wrap or _holds_figures(column)
        yield from super().render(_whole(renderable) if isinstance(renderable, Text) else renderable, options)

    def render_str(self, text: str, **more: Any) -> Text:
        """Return marked-up text with its figures whole."""
        return _whole(super().render_str(text, **more))


class _Whole(Text):
    """Text whose lines do not end inside a figure."""

    __slots__ = ()

    def wrap(self, console: Console, width: int, **more: Any) -> Lines:
        held = self.copy()
        held.plain = _held(held.plain)
        lines = held.wrap(console, width, **more)
        for line in lines:
            line.plain = line.plain.replace(_HELD, " ")
        return lines


def _held(text: str) -> str:
    """Return the text with another character for each space inside a figure."""
    return _INSIDE.sub(_HELD, text)


def _holds_figures(column: Column) -> bool:
    """Whether each cell of a column is one figure or empty, under a heading that is no longer."""
    texts = [str(cell) for cell in column.cells if str(cell)]
    if not texts or not all(_FIGURE.fullmatch(_held(text)) for text in texts):
        return False
    return len(str(column.header)) <= max(map(len, texts))


def _whole(text: Text) -> Text:
    return _Whole(
        text.plain,
        style=text.style,
        justify=text.justify,
        overflow=text.overflow,
        no_wrap=text.no_wrap,
        end=text.end,
        tab_size=text.tab_size,
        spans=list(text.spans),
    )
