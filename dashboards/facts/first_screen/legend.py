"""Meanings of the figures of findings on the first screen, and of the words by its bars, a line each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen.drawn import IDLE, UNATTRIBUTED
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.finding import do_not_add_up

_FIGURES: Final = ("toll", "floor", "saving")
_COST: Final = "cost per step on the worst rank"
_APART: Final = "do not sum tolls"
_ORDER: Final = "warnings before infos"
_WORDS: Final = (
    (_COST, "least time for its transfers", "what the fix gains"),
    (_COST, "least transfer time", "the fix's gain"),
    ("cost per step, worst rank", "least transfer time", "fix's gain"),
    ("cost per step", "least transfer time", "fix's gain"),
    ("cost per step", "least transfer time", "gain"),
    ("cost per step", "least time", "gain"),
    ("cost per step", "least", "gain"),
)
"""The same meanings of toll, floor and saving, for narrower and narrower lines."""
_PLAIN: Final = 4
"""How many of them are understood without more."""
_AT_MOST: Final = {
    "what the fix gains": "the most that the fix gains",
    "the fix's gain": "the most the fix gains",
    "fix's gain": "most the fix gains",
    "gain": "gain at most",
}
"""Meaning of a saving -> the same if some savings are upper bounds."""


_SURVEYED: Final = ("surveyed step: recorded whole", "surveyed: recorded whole", "surveyed: whole")
_WATCHED: Final = ("watched step: collectives only", "watched: collectives only", "watched: collectives")
_UNATTRIBUTED: Final = (
    "unattributed: recording, or in no record",
    "unattributed: recording, unknown",
    "unattributed: no record",
)
_NO_RECORD: Final = ("unattributed: in no record", "unattributed: in no record", "unattributed: no record")
"""The same if the bars leave the recording out."""
_IDLE_ON_CPU: Final = (
    "idle: no operator runs, but Python may",
    "idle: no operator runs",
    "idle: no operator",
)
"""Meanings of words by the bars, in full and for narrower lines."""


def legend(
    report: Report, findings: Sequence[Finding], names: Collection[str], width: int | None = None
) -> str | None:
    """Return what those of toll, floor and saving mean that stand in `names`, within `width` columns.

    It says if the tolls of the findings exceed what a rank loses, and why a smaller toll stands above a
    larger one. None without names.
    """
    line = None
    order = f" · {_ORDER}" if "toll" in names and _out_of_order(findings) else ""
    # Words that are cut short say less than the order of the rows.
    tries = [(words, order) for words in _WORDS[:_PLAIN]] if order else []
    for words, then in (*tries, *((words, "") for words in _WORDS)):
        meanings = dict(zip(_FIGURES, words, strict=True))
        if "toll" in names and exceed(report, findings):
            meanings["toll"] += f"; {_APART}"
        if any(finding.remedy_saves_ns and finding.replayed is None for finding in findings):
            meanings["saving"] = _AT_MOST[meanings["saving"]]
        line = " · ".join(f"{name}: {meanings[name]}" for name in _FIGURES if name in names)
        line += then if line else ""
        if width is None or len(line) <= width:
            break
    return line or None


def words(report: Report, drawn: Collection[int], width: int | None = None) -> str | None:
    """Return what those words about steps mean that stand by the bars, within `width` columns; None without.

    `drawn`: places in `DRAWN` of the parts that the bars show. The first meanings are left out if even the
    shortest words are too long together. The line of the run shows how steps were recorded.
    """
    said = []
    if summary.levels(report) is not None:
        surveyed = summary.surveyed_count(report)
        said = [_SURVEYED, _WATCHED] if surveyed else [_WATCHED]
    if UNATTRIBUTED in drawn:
        left_out = any(time.left_out_ns for time in step_times.rank_times(report))
        said.append(_NO_RECORD if left_out else _UNATTRIBUTED)
    if IDLE in drawn and report.run.device == "cpu":
        said.append(_IDLE_ON_CPU)
    tries = [
        [each[which if place < whole else which + 1] for place, each in enumerate(said)]
        for which in range(len(_WATCHED) - 1)
        for whole in range(len(said), 0, -1)
    ]
    shortest = [each[-1] for each in said]
    tries += [shortest[left_out:] for left_out in range(len(said))]
    lines = [" · ".join(each) for each in tries]
    return next((line for line in lines if width is None or len(line) <= width), lines[-1]) if lines else None


def _out_of_order(findings: Sequence[Finding]) -> bool:
    """Return whether an info costs more than a warning, which stands above it."""
    least = min(
        (each.toll_ns for each in findings if each.severity == "warning" and each.toll_ns), default=None
    )
    most = max((each.toll_ns or 0 for each in findings if each.severity == "info"), default=0)
    return least is not None and most > least


def exceed(report: Report, findings: Sequence[Finding]) -> bool:
    """Return whether tolls of these findings are more than any one rank loses.

    Each toll is of the rank where it is largest, and some hold the same time.
    """
    times = step_times.rank_times(report)
    names = [name for name, _ in step_times.PARTS]
    exposed = [time.parts_ns[names.index("exposed_comm_ns")] for time in times]
    known = [part for part in exposed if part is not None]
    return do_not_add_up(
        findings,
        exposed_ns=max(known, default=float("inf")),
        step_ns=max((time.step_ns for time in times), default=float("inf")),
    )
