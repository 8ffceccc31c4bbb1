"""A table if it fits, otherwise a narrower one, otherwise one line per row that names each figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from textwrap import wrap
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.words.text import unbroken

LEAST_WORDS: Final = 12
"""Columns that a folded column of names keeps at least."""


def width_of(table: Table) -> int:
    """Return the columns the table needs so that nothing in it is cut."""
    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).maximum


def fitted(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    words: Collection[int] = (),
    named: int = 0,
    label: Callable[[Sequence[str]], str] = " ".join,
) -> list[RenderableType]:
    """Return the rows for a terminal of `width` columns.

    `words`: columns of names; the others are numbers. A line begins with `label` of its first `named` cells.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(heads):
        table.add_column(name, justify="left" if place in words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    if width_of(table) <= width:
        return [table]
    narrow = tight(heads, rows, width, words=words)
    return [narrow] if narrow is not None else [_line(heads, row, named, label) for row in rows]


def tight(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, words: Collection[int]
) -> Table | None:
    """Return a table with heads of several lines and one column between figures.

    The widest column of names is folded, to `LEAST_WORDS` columns at least. None if the table is too wide or
    has no row.
    """
    if not rows:
        return None
    cells = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    split = [_folded(head, room) for head, room in zip(heads, cells, strict=True)]
    widths = [
        max(room, *(cell_len(line) for line in head.split("\n")))
        for head, room in zip(split, cells, strict=True)
    ]
    over = sum(widths) + len(widths) - 1 - width
    if over > 0:
        folded = max(words, key=lambda place: widths[place], default=None)
        if folded is None or widths[folded] - over < LEAST_WORDS:
            return None
        widths[folded] -= over
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for place, name in enumerate(split):
        table.add_column(
            name, justify="left" if place in words else "right", width=widths[place], overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _folded(head: str, room: int) -> str:
    """Return the head in lines of `room` columns, or of its longest word; `tokens/s/GPU` is two words."""
    first, slash, last = head.rpartition("/")
    words = f"{first} /{last}" if slash and "/" in first else head
    return "\n".join(wrap(words, max(room, *map(len, words.split())), break_long_words=False))


def _line(
    heads: Sequence[str], row: Sequence[str], named: int, label: Callable[[Sequence[str]], str]
) -> Text:
    figures = zip(heads[named:], row[named:], strict=True)
    text = ", ".join(f"{name} {unbroken(cell)}" for name, cell in figures)
    return Text(f"{label(row[:named])}: {text}" if named else text, overflow="fold")
