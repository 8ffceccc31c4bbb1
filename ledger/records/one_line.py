"""Text of others on one line: characters without a glyph written out, long texts cut in the middle.

Names come from users' programs and files. Errors clean theirs when they are made, renderers before they show
any.
"""

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
    """Return the cleaned text; one much longer than `most` is cut in the middle, where a mark stands."""
    text = clean(value)
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    if most < _SAY_HOW_MUCH:
        return f"{text[:head]}…{text[-tail:]}"
    mark = f"… ({len(text) - most:,} characters left out) …"
    # The words about what was left out must not be longer than it.
    return text if len(text) <= most + len(mark) else f"{text[:head]}{mark}{text[-tail:]}"


def shortened(value: object, most: int) -> str:
    """Return the cleaned text in at most `most` characters, the mark of what was cut among them."""
    text = str(value)
    # Only the ends of a text of many MB are looked at.
    text = clean(text if len(text) <= 4 * most else f"{text[: 2 * most]}{text[-2 * most :]}")
    if len(text) <= most:
        return text
    tail = most // 5
    return f"{text[: most - tail - 3]} … {text[-tail:]}"
