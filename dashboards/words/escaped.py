"""Names and sentences in Markdown, where they come from users' programs and must stay text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from shardtoll.dashboards.words.text import clean, clip

_MARKS: Final = "\\`*_[]|~>$"
_APART: Final = "&#8203;"
"""A space of no width. GitHub calls people by @name, and makes links of #1, http:// and www."""


def plain(value: object, most: int = 300) -> str:
    """Return text that Markdown shows as it is: no mark, no HTML, no link, no mention."""
    shown = clip(value, most).replace("&", "&amp;").replace("<", "&lt;")
    return _unlinked("".join(f"\\{char}" if char in _MARKS else char for char in shown))


def in_html(value: object, most: int = 300) -> str:
    """Return the same inside of HTML, where Markdown's marks mean nothing."""
    return _unlinked(escape(clip(value, most)))


def _unlinked(text: str) -> str:
    # The & of an entity stands before its #.
    text = re.sub(r"(?<!&)#", f"#{_APART}", text)
    return text.replace("@", f"@{_APART}").replace("://", f":{_APART}//").replace("www.", f"www{_APART}.")


def code(value: object, most: int = 2000) -> list[str]:
    """Return lines of a block of code; no line of the code can end it."""
    text = clip_lines(str(value), most)
    # Anywhere in a line: a fence that ends a block may be indented.
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}python", *text.splitlines(), fence]


def clip_lines(value: str, most: int) -> str:
    """Return text of several lines without characters that have no glyph, at most `most` long."""
    text = clean(value, lines=True)
    return text if len(text) <= most else f"{text[:most]}\n… ({len(text) - most:,} characters left out)"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are Markdown already."""
    rule = ["---"] * len(head)
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
