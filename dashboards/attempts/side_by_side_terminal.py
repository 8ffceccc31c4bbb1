"""The comparison on a terminal: columns side by side if they fit, else one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.attempts.side_by_side import Attempt, bill_lines, rows
from shardtoll.dashboards.terminal.screen import Screen

LEAST_COLUMN: Final = 24
"""Columns narrower than this break every line; the attempts then stand one after the other."""
_LABEL: Final = 24


def show(attempts: Sequence[Attempt], width: int | None = None) -> None:
    """Print the comparison; `width` in columns, by default the terminal's."""
    console = Screen(width)
    console.print(renderable(attempts, console.width))


def renderable(attempts: Sequence[Attempt], width: int) -> RenderableType:
    """Return the comparison for a terminal of that width."""
    fits = (width - _LABEL) // max(len(attempts), 1) >= LEAST_COLUMN
    return _beside(attempts) if fits else _stacked(attempts)


def _styled(label: str, cell: str) -> Text:
    if label == "gradient":
        return Text(cell, style="bold red" if cell.startswith("WRONG") else "bold green")
    return Text(cell)


def _beside(attempts: Sequence[Attempt]) -> Table:
    table = Table(title="the same step, written in several ways", show_lines=True)
    table.add_column("per step", style="dim", width=_LABEL)
    for attempt in attempts:
        table.add_column(Text(attempt.name, style="bold"), ratio=1)
    for row in rows(attempts):
        table.add_row(row.label, *(_styled(row.label, cell) for cell in row.cells))
    # Folded, not cut: a path is of use only whole.
    table.add_row(
        "the bill", *(Text("\n".join(bill_lines(attempt)), overflow="fold") for attempt in attempts)
    )
    table.add_row("lesson", *(Text(attempt.lesson, style="italic") for attempt in attempts))
    return table


def _stacked(attempts: Sequence[Attempt]) -> Group:
    parts: list[RenderableType] = []
    lines = rows(attempts)
    for index, attempt in enumerate(attempts):
        parts.append(Rule(Text(attempt.name, style="bold"), align="left"))
        for row in lines:
            text = Text(f"{row.label}: ", style="dim")
            text.append_text(_styled(row.label, row.cells[index]))
            parts.append(text)
        parts += [Text(line) for line in bill_lines(attempt)]
        parts += [Text(attempt.lesson, style="italic"), Text()]
    return Group(*parts)
