"""Names come from users' programs and files: make them safe to show before any renderer sees them."""

from __future__ import annotations

import unicodedata
from typing import Final

_SPACES: Final = {"\n": " ", "\r": " ", "\t": " ", "\u2028": " ", "\u2029": " "}
_HIDDEN: Final = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories with no glyph: terminal escapes, text-direction marks, lone surrogates."""


_SAY_HOW_MUCH: Final = 80
"""Shortest limit at which the words about what was left out do not outweigh what is shown."""


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(value: object, *, lines: bool = False) -> str:
    """Return the text on one line, with every character that has no glyph written out as an escape.

    `lines` keeps line ends and turns tabs into four spaces, for code.
    """
    text = str(value)
    if lines:
        kept = text.replace("\r\n", "\n").expandtabs(4).split("\n")
        return "\n".join(clean(line) for line in kept)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_SPACES.get(char) or _visible(char) for char in text)


def clip(value: object, most: int) -> str:
    """Return the cleaned text; one longer than `most` is cut in the middle, where a mark stands."""
    text = clean(value)
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    if most < _SAY_HOW_MUCH:
        return f"{text[:head]}…{text[-tail:]}"
    return f"{text[:head]}… ({len(text) - most:,} characters left out) …{text[-tail:]}"


def unbroken(text: str) -> str:
    """Return the text with spaces that no line ends at, so that a number keeps its unit."""
    return text.replace(" ", "\u00a0")
