"""Figure and table: from today's step to the floor, fix by fix, as replay predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.page.html.fall import Fall, waterfall
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.ledger import Report
from shardtoll.ledger.answers.what_if import WITHOUT_CAPTURE, Change, Foreseen
from shardtoll.ledger.words import human

LEAD: Final = (
    "Predicted by replaying the recorded steps. Each bar shows how much the fix of a finding shortens the "
    "step after the fixes above it. Two fixes of one cause do not save twice. The bill may say more: it "
    "shows an upper bound for fixes whose prediction is not proven yet."
)

FLOOR: Final = (
    "The last bar is the step with all these fixes and every collective whose floor is known at its floor."
)


def figure(report: Report) -> Figure:
    """Return the way down; empty if no step was replayed or no finding has a change to replay."""
    seen = _seen(report)
    if seen is None:
        return Figure([], {})
    falls = [_fall(change) for change in seen.changes]
    ends = [Fall("with these fixes", seen.changes[-1].step_ns)]
    if seen.floor_ns is not None:
        ends.append(Fall("collectives at their floor too", seen.floor_ns))
    made = waterfall(Fall("today", seen.before.step_ns), falls, ends)
    made.notes.extend(_notes(report, seen))
    return made


def numbers(report: Report) -> str:
    """Return the same as a table."""
    seen = _seen(report)
    if seen is None:
        return ""
    rows = [[safe(cell) for cell in row] for row in words.change_rows(seen.changes)]
    return table([safe(head) for head in words.CHANGE_HEADS], rows, "the step, fix by fix")


def _seen(report: Report) -> Foreseen | None:
    seen = report.foreseen
    return seen if seen is not None and seen.changes else None


def _fall(change: Change) -> Fall:
    alone = words.band(change.saving_ns, change.low_ns, change.high_ns)
    more = (f"alone it saves {alone}", *((change.title,) if change.title else ()))
    return Fall(words.label(change), change.step_ns, change.number, more)


def _notes(report: Report, seen: Foreseen) -> list[str]:
    """Return the meaning of the last bar, which findings with a toll have no bar, and how reliable the replay
    is."""
    with_toll = [number for number, finding in enumerate(report.findings, start=1) if finding.toll_ns]
    shown = {change.number for change in seen.changes}
    tried = with_toll if seen.tried is None else with_toll[: seen.tried]
    notes = []
    if seen.floor_ns is not None:
        notes.append(FLOOR)
    if left := [number for number in tried if number not in shown]:
        notes.append(f"Not shown: {_named(left)}, whose fix cannot be replayed.")
    if late := with_toll[len(tried) :]:
        notes.append(f"Not shown: {_named(late)}. Only the first {len(tried)} with a toll are replayed.")
    if seen.without_capture:
        notes.append(WITHOUT_CAPTURE)
    basis = words.basis(seen.source, len(seen.steps), seen.nodes, seen.replay_error, seen.unknown_share)
    return [*notes, f"{basis[0].upper()}{basis[1:]}."]


def _named(numbers: Sequence[int]) -> str:
    return f"{'finding' if len(numbers) == 1 else 'findings'} {human.runs(numbers)}"
