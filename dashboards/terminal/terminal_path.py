"""The critical path of the job on a terminal, and how far the bill's fixes shorten it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.terminal.answers import table
from shardtoll.ledger import Report
from shardtoll.ledger.answers.what_if import WITHOUT_CAPTURE
from shardtoll.ledger.words import human


def path(report: Report, _: int) -> list[RenderableType]:
    """Return the section's lines; empty if nothing was replayed."""
    seen = report.foreseen
    if seen is None or not seen.path.parts:
        return []
    head = Text("the critical path of the job", style="bold")
    head.append(f" ({words.path_words(seen.path)})", style="not bold")
    lines: list[RenderableType] = [head, table(words.PATH_HEADS, words.path_rows(seen.path))]
    if seen.changes:
        last = seen.changes[-1]
        floor = (
            ""
            if seen.floor_ns is None
            else f"; with collectives at their floor {human.duration(seen.floor_ns)}"
        )
        lines.append(
            Text(
                f"with {human.plural(len(seen.changes), 'finding')} fixed the step takes "
                f"{human.duration(last.step_ns)} in place of {human.duration(seen.before.step_ns)}{floor}"
            )
        )
    if seen.without_capture:
        lines.append(Text(WITHOUT_CAPTURE))
    basis = words.basis(seen.source, len(seen.steps), seen.nodes, seen.replay_error, seen.unknown_share)
    return [*lines, Text(basis, style="dim")]
