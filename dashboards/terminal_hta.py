"""HTA's answers on a terminal: tables where they fit, else a line a row."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.hta_tables import HtaTable, contradiction, hta_tables, named_ranks
from shardtoll.dashboards.text import clip, unbroken
from shardtoll.ledger import Report

ROWS_SHOWN: Final = 8
NOTICES_SHOWN: Final = 4


def hta(report: Report, width: int) -> list[RenderableType]:
    """Return what HTA says for a terminal of `width` columns; nothing where it was not asked."""
    figures = report.hta
    if figures is None:
        return []
    head = Text("what HTA says", style="bold")
    head.append(f", Holistic Trace Analysis {clip(figures.version, 20)}", style="not bold")
    shown: list[RenderableType] = [Text(), head]
    tables = hta_tables(figures, ROWS_SHOWN, named_ranks(report))
    for table in tables:
        title = Text(table.title, style="bold")
        title.append(f": {table.lead}", style="not bold")
        shown += [title, _fitted(table, width)]
        if table.left_out:
            shown.append(Text(f"{table.left_out:,} more rows are in the JSON file (-o out.json)"))
    caution = contradiction(report)
    if caution is not None:
        shown.append(Text(caution))
    for line in figures.notices[:NOTICES_SHOWN]:
        shown.append(Text(clip(line, 300), style="yellow"))
    if len(figures.notices) > NOTICES_SHOWN:
        shown.append(Text(f"{len(figures.notices) - NOTICES_SHOWN:,} more such lines are in the JSON file"))
    return shown


def _fitted(table: HtaTable, width: int) -> RenderableType:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in table.heads:
        made.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        made.add_row(*row)
    console = Console(width=10_000)
    if Measurement.get(console, console.options, made).maximum <= width:
        return made
    lines = [
        ", ".join(unbroken(f"{head} {cell}") for head, cell in zip(table.heads, row, strict=True))
        for row in table.rows
    ]
    return Text("\n".join(lines))
