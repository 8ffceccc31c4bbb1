"""Lines of the first screen: cut at the width or wrapped, with figures and their units together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from shardtoll.dashboards.words.text import clean

_UNIT: Final = re.compile(
    r"(?<=\d) (?=%|(?:[nµm]?s|[kMGT]?B)\b)|(?<=\b[Ff]inding) (?=\d)|(?<=\b[Rr]ank) (?=\d)|(?<= -o) "
)
"""Spaces at which no line ends: before a unit, and between a word or option and what belongs to it."""
_UNBROKEN: Final = "\ue000"
"""Stands for a space while lines are broken: rich ends lines at every kind of space."""


def broken(text: str, console: Console, width: int) -> list[str]:
    """Return clean text in lines of that width; none of them ends between a number and its unit."""
    held = _UNIT.sub(_UNBROKEN, text)
    return [_freed(line.plain) for line in Text(held).wrap(console, width)]


def in_parts(parts: Iterable[str], console: Console, width: int) -> list[str]:
    """Return the parts side by side in lines of that width; a line ends only between two of them."""
    held = "  ".join(part.replace(" ", _UNBROKEN) for part in parts)
    return [_freed(line.plain) for line in Text(held).wrap(console, width)]


def wrapped(sentences: Iterable[str], console: Console, width: int, style: str = "") -> list[Text]:
    """Return sentences in whole lines: one that is cut has to be guessed."""
    return [
        Text(line, style=style) for sentence in sentences for line in broken(clean(sentence), console, width)
    ]


def cut(line: Text, width: int) -> Text:
    """Return the line without characters that have no glyph, cut at the width where a mark stands."""
    text = clean(line.plain)
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
    return Text(text, style=line.style, no_wrap=True)


def _freed(line: str) -> str:
    """Return a line that ends where it was broken, with the spaces that were held."""
    return line.replace(_UNBROKEN, " ").rstrip()
