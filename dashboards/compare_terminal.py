"""Two runs beside each other on a terminal, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards import compare_rows
from shardtoll.dashboards.compare_rows import Row
from shardtoll.dashboards.text import clip
from shardtoll.ledger.comparison import Comparison

TABLE_WIDTH: Final = 110
"""Narrower terminals get lines."""
_STYLE: Final = {"changed": "bold red", "no change": "bold green", "too few steps": "bold yellow"}
_CHANGED: Final = ("more", "less", "added", "removed", "dtype", "size", "count", "time", "new", "gone")
_MOST: Final = 900
_INDENT: Final = (0, 0, 0, 3)


def show(found: Comparison, width: int | None = None) -> None:
    """Print it; `width` in columns, by default the terminal's."""
    console = Console(width=width, highlight=False)
    console.print(renderable(found, console.width))


def renderable(found: Comparison, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    head = Text(overflow="fold")
    head.append(clip(found.headline, _MOST), style=_STYLE[found.verdict])
    names = f"{clip(found.before.name, 200)} -> {clip(found.after.name, 200)}"
    parts: list[RenderableType] = [head, Text(names, style="dim", overflow="fold")]
    for words in found.warnings:
        parts.append(Text("not alike: ", style="yellow").append(clip(words, _MOST), style="default"))
    parts += [Text(clip(words, _MOST), style="dim", overflow="fold") for words in found.notes]
    for part in compare_rows.sections(found):
        parts += _section(part.title, part.heads, part.rows, width)
        if part.left:
            parts.append(Text(f"and {part.left:,} more, which are in the JSON (-o out.json)", style="dim"))
    return Group(*parts)


def _section(title: str, heads: Sequence[str], rows: Sequence[Row], width: int) -> list[RenderableType]:
    made: list[RenderableType] = [Text(f"\n{title}", style="bold", overflow="fold")]
    if width < TABLE_WIDTH:
        return made + [Padding(_line(heads, row), _INDENT) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, name in enumerate(heads):
        table.add_column(name, justify="left" if at in (0, len(heads) - 1) else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    return [*made, table]


def _line(heads: Sequence[str], row: Row) -> Text:
    text = Text(overflow="fold")
    text.append(row[0], style="bold")
    for head, cell in zip(heads[1:], row[1:], strict=True):
        if cell and cell != "-":
            text.append(f"; {head} " if head else "; ", style="dim")
            text.append_text(_cell(cell))
    return text


def _cell(cell: str) -> Text:
    # Names are text, never markup.
    return Text(cell, style="bold yellow" if cell.split(",")[0] in _CHANGED else "")
