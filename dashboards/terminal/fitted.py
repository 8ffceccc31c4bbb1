"""A table where it fits, otherwise a line a row that names each figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.words.text import unbroken


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
    return [table] if width_of(table) <= width else [_line(heads, row, named, label) for row in rows]


def _line(
    heads: Sequence[str], row: Sequence[str], named: int, label: Callable[[Sequence[str]], str]
) -> Text:
    figures = zip(heads[named:], row[named:], strict=True)
    text = ", ".join(f"{name} {unbroken(cell)}" for name, cell in figures)
    return Text(f"{label(row[:named])}: {text}" if named else text, overflow="fold")
