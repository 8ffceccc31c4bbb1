"""How many parts the longest dotted key of a TOML text has, found in one pass before anything parses it."""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = re.compile(r"""#|\"""|'''|["'.=,{}\[\]\n]""")
_ENDS: Final = {
    "#": re.compile(r"(?=\n)"),
    '"': re.compile(r'\\.|"|(?=\n)'),
    "'": re.compile(r"'|(?=\n)"),
    '"""': re.compile(r'\\.|"{3,5}', re.DOTALL),
    "'''": re.compile(r"'{3,5}"),
}
"""The end of a comment or a string; after a backslash stands a character of the string."""


def most_parts(text: str) -> int:
    """Return the parts of the longest dotted key outside strings and comments, also of inline tables.

    A value outside strings, as a number, has a dot too, but never many.
    """
    most = parts = 1
    at = 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        if mark[0] == ".":
            parts += 1
            most = max(most, parts)
        elif mark[0] in _ENDS:
            at = _end(text, mark[0], at)
        else:
            parts = 1
    return most


def _end(text: str, opened: str, at: int) -> int:
    """Return where a comment or a string ends; the text's end if nothing closes it."""
    while (found := _ENDS[opened].search(text, at)) is not None:
        at = found.end()
        if not found[0].startswith("\\"):
            return at
    return len(text)
