"""TOML as others wrote it: the one place that reads it, so that every mistake ends in one line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.foreign.regular import read_regular
from shardtoll.ledger.records.errors import first_line

_MARK: Final = re.compile(r"""#|\"""|'''|["'.=,{}\[\]\n]""")

_ENDS: Final = {
    "#": re.compile(r"(?=\n)"),
    '"': re.compile(r'\\.|"|(?=\n)'),
    "'": re.compile(r"'|(?=\n)"),
    '"""': re.compile(r'\\.|"{3,5}', re.DOTALL),
    "'''": re.compile(r"'{3,5}"),
}
"""The end of a comment or a string; after a backslash stands a character of the string."""

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_MOST_PARTS: Final = 1_000


class TomlError(ValueError):
    """A text is no TOML; says why in one line."""


def toml_tables(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; TomlError if it is none, also if it nests too deep."""
    # A key of many parts takes the square of their number, in time and memory.
    if most_parts(text) > _MOST_PARTS:
        raise TomlError(f"a key of more than {_MOST_PARTS} parts")
    try:
        return dict(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        # A number of too many digits is a ValueError of Python's own.
        raise TomlError(first_line(error)) from error


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file in UTF-8; OSError in one line for any other file, or a larger one."""
    try:
        return read_regular(path, most_bytes).decode("utf-8")
    except ValueError as error:
        # A path with a NUL in it is a ValueError too.
        undecodable = isinstance(error, UnicodeDecodeError)
        raise OSError("not UTF-8 text" if undecodable else first_line(error)) from error


def why_unread(error: OSError) -> str:
    """Return in a few words why a file was not read."""
    return error.strerror or str(error)


def most_parts(text: str) -> int:
    """Return the parts of the longest dotted key outside strings and comments, also of inline tables.

    A value outside strings, as a number, has a dot too, but never many.
    """
    most = parts = 1
    position = 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] == ".":
            parts += 1
            most = max(most, parts)
        elif mark[0] in _ENDS:
            position = _end(text, mark[0], position)
        else:
            parts = 1
    return most


def _end(text: str, opened: str, at: int) -> int:
    """Return where a comment or a string ends; the text's end if nothing closes it."""
    while (closing := _ENDS[opened].search(text, at)) is not None:
        at = closing.end()
        if not closing[0].startswith("\\"):
            return at
    return len(text)
