"""The late rank of each collective on a terminal: a table if it fits, otherwise lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts.waits import HEADS, late_ranks
from shardtoll.dashboards.terminal.fitted import fitted
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Report
from shardtoll.ledger.words import human

_NAME: Final = 40
_WORDS: Final = (1, 2)
"""Columns of names; the others are numbers."""


def late(report: Report, width: int) -> list[RenderableType]:
    """Return the table for a terminal of `width` columns; empty if no collective was matched."""
    late_rows, total = late_ranks(report)
    if not late_rows:
        return []
    rows = [[clip(cell, _NAME) for cell in row.cells()] for row in late_rows]
    head = Text("the late rank of each collective", style="bold")
    head.append("; longest wait first, each matched over all ranks of its group", style="not bold")
    shown: list[RenderableType] = [Text(), head]
    shown += fitted(HEADS, rows, width, words=_WORDS, named=3, label=_collective)
    if total > len(late_rows):
        shown.append(Text(f"and {human.plural(total - len(late_rows), 'more collective')}", style="dim"))
    return shown


def _collective(cells: Sequence[str]) -> str:
    """Return how a line names its collective."""
    return f"step {' '.join(cells)}"
