"""Figure and table: the way from today's step to the floor, fix by fix, as replay has it."""

from __future__ import annotations

from html import escape
from typing import Final

from shardtoll.dashboards.facts import replayed_words as words
from shardtoll.dashboards.page.html.fall import waterfall
from shardtoll.dashboards.page.html.figure import Figure
from shardtoll.dashboards.page.html.page_bill import safe
from shardtoll.dashboards.page.html.tables import table
from shardtoll.ledger import Report

LEAD: Final = (
    "The recorded steps replayed with each fix of the bill on top of those before. A fix takes off less than "
    "its toll if something else then stands in the way. Floor: all fixes, every collective at the least "
    "that the fabric allows. The table has the critical path: shortening what is not on it saves nothing."
)


def figure(report: Report) -> Figure:
    """Return the waterfall; empty where nothing was replayed or no finding has an edit."""
    seen = report.foreseen
    if seen is None or not seen.changes:
        return Figure([], {})
    falls = [(words.label(change), change.step_ns, change.number) for change in seen.changes]
    ends = [("all of them fixed", seen.changes[-1].step_ns, None)]
    if seen.floor_ns is not None:
        ends.append(("floor", seen.floor_ns, None))
    drawn = waterfall(("today", seen.before.step_ns), falls, ends)
    note = words.basis(seen.source, len(seen.steps), seen.nodes, seen.replay_error, seen.unknown_share)
    return Figure(drawn.data, drawn.layout, [f"{note[0].upper()}{note[1:]}."], marks=drawn.marks)


def numbers(report: Report) -> str:
    """Return the critical path as a table; empty where nothing was replayed."""
    seen = report.foreseen
    if seen is None or not seen.path.parts:
        return ""
    rows = [[safe(cell) for cell in row] for row in words.path_rows(seen.path)]
    return table([escape(head) for head in words.PATH_HEADS], rows, "critical path")
