"""Findings that must be read together: of one line of code, of the same time, or of one cause."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Final

from shardtoll.dashboards.facts.first_screen.first_rows import largest_toll
from shardtoll.ledger import Report
from shardtoll.ledger.records.one_cause import of_late_launches, of_own_reason
from shardtoll.ledger.words import human

_MOST_LINES: Final = 2
"""Sentences on a first screen."""


def overlaps(report: Report, shown: Collection[int] | None = None) -> list[str]:
    """Return a sentence for each set of findings whose tolls do not add up, as they hold the same time.

    `shown`: only sets of which two are shown, by their numbers. The time is that of the whole set, so the
    sentence names its others too.
    """
    said = []
    for overlap in report.overlaps:
        numbers = [number for number in overlap.findings if shown is None or number in shown]
        if len(numbers) > 1 and max(overlap.findings) <= len(report.findings):
            most = human.duration(overlap.most_ns)
            # The screen's last line says which findings are not shown.
            named = sorted(overlap.findings)
            every = "both" if len(overlap.findings) == 2 else "all"
            they = (
                f"fixing {every} saves at most {most}"
                if overlap.saved
                else f"together they cost at most {most}"
            )
            said.append(f"Findings {_listed(named)} overlap: {they}.")
    return said


def of_one_line(report: Report, shown: Collection[int]) -> list[str]:
    """Return a sentence for each line of the user's code that several findings shown of one kind name.

    Only of communication: of batches, or of what an optimizer repeats, the fixes have nothing in common.
    """
    numbers: dict[tuple[str, str], list[int]] = {}
    for number in sorted(shown):
        finding = report.findings[number - 1]
        source = finding.where.source
        if source and finding.family == "communication":
            # The function is left out: code outside of one has none.
            numbers.setdefault((source.partition(" (")[0], finding.kind), []).append(number)
    return [
        f"Findings {_listed(several)} are of one line, {PurePath(line).name}: one change may fix "
        f"{'both' if len(several) == 2 else 'all'}."
        for (line, _), several in numbers.items()
        if len(several) > 1
    ]


def of_one_parameter(report: Report, shown: Collection[int]) -> list[str]:
    """Return a sentence for the first parameter with several errors, of which the first causes the others."""
    numbers: dict[str, list[int]] = {}
    for number in sorted(shown):
        finding = report.findings[number - 1]
        if finding.family == "correctness" and finding.severity == "error" and finding.where.parameter:
            numbers.setdefault(finding.where.parameter, []).append(number)
    several = next((each for each in numbers.values() if len(each) > 1), None)
    if several is None:
        return []
    return [f"Findings {_listed(several)} have one cause: fix finding {several[0]}, then report again."]


def from_late_launches(report: Report, shown: Collection[int]) -> list[str]:
    """Return a sentence if ranks wait for launches and another one is late as its host launches late."""
    numbers = sorted(shown)
    linked = [numbers[place] for place in of_late_launches([report.findings[each - 1] for each in numbers])]
    if not linked:
        return []
    named = [report.findings[each - 1] for each in linked]
    latest = sorted({rank for finding in named if finding.kind != "launch-bound" for rank in finding.ranks})
    return [
        f"Findings {_listed(linked)} have one cause: hosts launch late, most of all that of "
        f"{human.ranks(latest)}. Make launching faster on all ranks."
    ]


def from_own_reason(report: Report, shown: Collection[int]) -> list[str]:
    """Return a sentence if a rank is late because of another finding that is about it alone, as its
    checkpoints."""
    numbers = sorted(shown)
    pair = of_own_reason([report.findings[each - 1] for each in numbers])
    if pair is None:
        return []
    own, late = (numbers[place] for place in pair)
    (rank,) = report.findings[late - 1].ranks
    return [
        f"Findings {_listed(sorted((own, late)))} have one cause: rank {rank} is late by its "
        f"{report.findings[own - 1].kind}. Fix finding {own}."
    ]


def of_largest_toll(report: Report, shown: Collection[int]) -> list[str]:
    """Return a sentence if the finding with the largest toll is shown below one with a smaller toll."""
    largest = largest_toll(report.findings)
    if largest is None or largest not in shown:
        return []
    above = [report.findings[number - 1] for number in shown if number < largest]
    if not any(finding.toll_ns for finding in above):
        return []
    finding = report.findings[largest - 1]
    most, saves_ns = max(each.remedy_saves_ns or 0 for each in above), finding.remedy_saves_ns
    if saves_ns is not None and saves_ns < most:
        why = f"but its fix saves at most {human.duration(saves_ns)}" if saves_ns else ""
        why = why or "but its fix alone saves nothing"
    elif finding.only_measures:
        why = "but how to fix it takes a measurement first"
    elif finding.kind == "straggler":
        if len(finding.ranks) == 1:
            return []
        why = "but no single rank causes it"
    elif finding.severity == "info":
        # An info may not be a fault: nobody knows.
        why = "but the job may need that time"
    elif any(each.severity == "error" for each in above):
        why = "but errors come first"
    else:
        return []
    return [f"Finding {largest} has the largest toll, {human.duration(finding.toll_ns)}, {why}."]


def on_the_bill(report: Report) -> list[str]:
    """Return what must be known before figures of any findings are added."""
    every = range(1, len(report.findings) + 1)
    return [*overlaps(report), *from_late_launches(report, every)]


def on_one_screen(report: Report, shown: Collection[int]) -> list[str]:
    """Return what must be known before figures of the findings shown are added, or all their fixes made."""
    linked = [*of_one_parameter(report, shown), *of_largest_toll(report, shown), *overlaps(report, shown)]
    linked += [*from_late_launches(report, shown), *from_own_reason(report, shown)]
    linked += of_one_line(report, shown)
    return linked[:_MOST_LINES]


def _listed(words: Sequence[int | str]) -> str:
    return f"{', '.join(map(str, words[:-1]))} and {words[-1]}"
