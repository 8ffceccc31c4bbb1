"""HTA's answers on a terminal: tables if they fit, else one line per row."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts.hta_tables import contradiction, hta_tables, named_ranks
from shardtoll.dashboards.terminal.fitted import fitted
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report

ROWS_SHOWN: Final = 8
NOTICES_SHOWN: Final = 4


def hta(report: Report, width: int) -> list[RenderableType]:
    """Return HTA's figures for a terminal of `width` columns; empty if HTA was not asked."""
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
        shown += [title, *fitted(table.heads, table.rows, width)]
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
