"""Sections of a report that are a table if it fits, otherwise lines: traffic, late ranks, what HTA says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.hta_tables import contradiction, hta_tables, named_ranks
from shardtoll.dashboards.facts.waits import HEADS, late_ranks
from shardtoll.dashboards.terminal.fitted import fitted
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.answers.traffic import Traffic
from shardtoll.ledger.words import human

ROWS_SHOWN: Final = 12

_NAME: Final = 40

_HEADS: Final = ("op", "group", "calls", "message", "wire", "exposed", "floor", "expected")

_WORDS: Final = (0, 1)
"""Columns of names; the others are numbers."""

_LATE_WORDS: Final = (1, 2)
"""Columns of names; the others are numbers."""

HTA_ROWS_SHOWN: Final = 8

NOTICES_SHOWN: Final = 4


def traffic(report: Report, width: int) -> list[RenderableType]:
    """Return the table for a terminal of `width` columns; nothing without collectives in finished steps."""
    if not report.traffic:
        return []
    head = Text("collectives", style="bold")
    head.append(" by operation and group; per step, each figure on the rank where it is largest")
    head.append(summary.base_of_traffic(report))
    shown: list[RenderableType] = [Text(), head]
    rows = [_cells(row) for row in report.traffic[:ROWS_SHOWN]]
    shown += fitted(_HEADS, rows, width, words=_WORDS, named=len(_WORDS))
    if len(report.traffic) > ROWS_SHOWN:
        shown.append(Text(f"and {len(report.traffic) - ROWS_SHOWN} more (-o out.json has all)", style="dim"))
    return shown


def _cells(row: Traffic) -> tuple[str, ...]:
    calls = f"{row.calls:,.0f}" if row.calls == round(row.calls) else f"{row.calls:,.2f}"
    return (
        clip(row.op, _NAME),
        clip(f"×{row.group_size} {row.mesh_dim or row.group or human.UNKNOWN}", _NAME),
        calls,
        human.size(row.message_bytes),
        human.size(row.wire_bytes),
        human.duration(row.exposed_ns),
        human.duration(row.floor_ns),
        human.duration(row.expected_ns),
    )


def late(report: Report, width: int) -> list[RenderableType]:
    """Return the table for a terminal of `width` columns; empty if no collective was matched."""
    late_rows, total = late_ranks(report)
    if not late_rows:
        return []
    rows = [[clip(cell, _NAME) for cell in row.cells()] for row in late_rows]
    head = Text("the late rank of each collective", style="bold")
    head.append("; longest wait first, each matched over all ranks of its group", style="not bold")
    shown: list[RenderableType] = [Text(), head]
    shown += fitted(HEADS, rows, width, words=_LATE_WORDS, named=3, label=_collective)
    if total > len(late_rows):
        shown.append(Text(f"and {human.plural(total - len(late_rows), 'more collective')}", style="dim"))
    return shown


def _collective(cells: Sequence[str]) -> str:
    """Return how a line names its collective."""
    return f"step {' '.join(cells)}"


def hta(report: Report, width: int) -> list[RenderableType]:
    """Return HTA's figures for a terminal of `width` columns; empty if HTA was not asked."""
    figures = report.hta
    if figures is None:
        return []
    head = Text("what HTA says", style="bold")
    head.append(f", Holistic Trace Analysis {clip(figures.version, 20)}", style="not bold")
    shown: list[RenderableType] = [Text(), head]
    tables = hta_tables(figures, HTA_ROWS_SHOWN, named_ranks(report))
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
