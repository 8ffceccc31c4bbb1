"""The columns of a table that a terminal has room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

_BETWEEN = 3
"""Blanks between two columns."""


def fitting(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, first_to_go: Sequence[str]
) -> tuple[list[str], list[list[str]], str | None]:
    """Return heads and rows without the columns that have no room, and a line that names these, if any.

    `width`: in columns of a terminal. `first_to_go`: what may be left out, the least important first.
    """
    needed = [max(map(cell_len, [head, *(row[place] for row in rows)])) for place, head in enumerate(heads)]
    kept = list(range(len(heads)))
    for head in first_to_go:
        if _width(needed[place] for place in kept) <= width:
            break
        kept.remove(heads.index(head))
    missing = [head for place, head in enumerate(heads) if place not in kept]
    line = f"--width {_width(needed)} also shows: {', '.join(missing)}" if missing else None
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in rows], line


def _width(columns: Iterable[int]) -> int:
    sizes = list(columns)
    return sum(sizes) + _BETWEEN * (len(sizes) - 1)
