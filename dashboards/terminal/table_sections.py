"""Sections of a report that are a table if it fits, otherwise lines: traffic, late ranks, what HTA says."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts import summary
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
