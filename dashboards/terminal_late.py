"""The late rank of each collective on a terminal: a table where it fits, otherwise lines."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards import human
from shardtoll.dashboards.late_ranks import HEADS, late_ranks
from shardtoll.dashboards.text import clip, unbroken
from shardtoll.ledger import Report

_NAME: Final = 40
_WORDS: Final = (1, 2)
"""Columns of names; the others are numbers."""


def late(report: Report, width: int) -> list[RenderableType]:
    """Return the table for a terminal of `width` columns; nothing where no collective was matched."""
    found, total = late_ranks(report)
    if not found:
        return []
    rows = [[clip(cell, _NAME) for cell in row.cells()] for row in found]
    head = Text("the late rank of each collective", style="bold")
    head.append("; exposed longest first, each matched over all ranks of its group", style="not bold")
    shown: list[RenderableType] = [Text(), head]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at, name in enumerate(HEADS):
        table.add_column(name, justify="left" if at in _WORDS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=10_000)
    if Measurement.get(console, console.options, table).maximum <= width:
        shown.append(table)
    else:
        for row in rows:
            line = Text(f"step {row[0]} {row[1]} {row[2]}: ", overflow="fold")
            named = zip(HEADS[3:], row[3:], strict=True)
            line.append(", ".join(f"{name} {unbroken(cell)}" for name, cell in named))
            shown.append(line)
    if total > len(found):
        shown.append(Text(f"and {human.plural(total - len(found), 'more collective')}", style="dim"))
    return shown
