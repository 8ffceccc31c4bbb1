"""Which findings stand on the first screen, and which of them share a row there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.dashboards.facts.first_screen.hung import KIND, hang_of
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.records.one_cause import of_one_parameter, one_change
from shardtoll.ledger.words import human
from shardtoll.ledger.words.names import shortened

FINDINGS: Final = 5
LEAST_SHARE: Final = 0.01
"""Parts that take less of the step are left to the step table."""
DIVIDED: Final = ("compute", "schedule")
"""Families of findings whose tolls are compute and idle time."""
_NAMED: Final = 2
"""Forms of parameters' names in a row; other parameters are counted."""


class Row(Struct, frozen=True):
    """One row: a finding, or several that differ only in the parameter."""

    finding: Finding
    """The first of them on the bill."""
    numbers: tuple[int, ...]
    """Their numbers on the bill, which counts from 1."""
    parameters: tuple[str, ...] = ()
    """Their parameters, if they are several."""
    more: tuple[Finding, ...] = ()
    """Further findings of the same remedy: they differ in place and numbers."""
    follow: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Errors that these cause, by kind, with their numbers: they go with them."""

    @property
    def number(self) -> int:
        """The number of the first of them."""
        return self.numbers[0]

    @property
    def place(self) -> str | None:
        """Return `3 biases (findings 1-3): a.{x,y,z}.bias`; None if it is one finding."""
        if not self.parameters:
            return None
        own = self.numbers[: len(self.parameters)]
        named = shortened(self.parameters, _NAMED)
        return f"{_counted(self.parameters)} (findings {human.runs(own)}): {named}"


def rows(findings: Sequence[Finding]) -> list[Row]:
    """Return the findings in the order of the bill; those of one cause and place share the row of the first.

    Findings that cost time share one if the same change fixes them.
    A late rank has a row of its own: who it is matters.
    """
    alike: dict[Hashable, list[int]] = {}
    for number, finding in enumerate(findings, start=1):
        alike.setdefault(_cause(finding) or number, []).append(number)
    made = []
    for numbers in alike.values():
        first, *others = (findings[number - 1] for number in numbers)
        if first.toll_ns is not None:
            made.append(Row(first, tuple(numbers), more=tuple(others)))
            continue
        names = tuple(name for number in numbers if (name := findings[number - 1].where.parameter))
        of_names = names if len(names) == len(numbers) > 1 else ()
        made.append(Row(first, tuple(numbers), of_names, () if of_names else tuple(others)))
    return _with_consequences(findings, made)


def _with_consequences(findings: Sequence[Finding], made: Sequence[Row]) -> list[Row]:
    """Return the rows, errors that an error of another row causes within that row."""
    causes = of_one_parameter(findings)
    kept: list[Row] = []
    for row in made:
        of = {causes.get(number - 1) for number in row.numbers}
        host = next((each for each in kept if of <= {number - 1 for number in each.numbers}), None)
        if host is None or None in of:
            kept.append(row)
            continue
        kept[kept.index(host)] = replace_struct(
            host,
            numbers=(*host.numbers, *row.numbers),
            follow=(*host.follow, (row.finding.kind, row.numbers)),
        )
    return kept


def worth_showing(report: Report) -> list[Row]:
    """Return the first rows without noise; see `noise`.

    The first one stands there in any case, and in place of the last one the finding with the largest toll.
    A job that hangs shows the hang and other errors only.
    """
    if hang_of(report) is not None:
        errors = [row for row in rows(report.findings) if row.finding.severity == "error"]
        return sorted(errors, key=lambda row: row.finding.kind != KIND)[:FINDINGS]
    every = rows(report.findings)
    largest = largest_toll(report.findings)
    first = every[:FINDINGS]
    if largest is not None and not any(largest in row.numbers for row in first):
        first[-1] = next(row for row in every if largest in row.numbers)
    is_noise = noise(report)
    return [
        row
        for row in first
        if 1 in row.numbers or largest in row.numbers or not all(map(is_noise, (row.finding, *row.more)))
    ]


def noise(report: Report) -> Callable[[Finding], bool]:
    """Return what says whether a finding is information on less time than is worth a line.

    Noise is less than `LEAST_SHARE` of a step; of compute and idle time also less than they may be off.
    """
    longest = max((time.step_ns for time in step_times.rank_times(report)), default=0.0)
    least_ns = LEAST_SHARE * longest
    error_ns = summary.parts_error_ns(report) or 0.0

    def is_noise(finding: Finding) -> bool:
        if finding.severity != "info" or finding.toll_ns is None or finding.figure("ranks_of_equal_data"):
            # Equal batches teach nothing new, however little time they take.
            return False
        divided = finding.family in DIVIDED and not _is_timed(finding)
        return finding.toll_ns < (max(least_ns, error_ns) if divided else least_ns)

    return is_noise


def largest_toll(findings: Sequence[Finding]) -> int | None:
    """Return the number of the finding with the largest toll; None if none costs time."""
    priced = [number for number, finding in enumerate(findings, start=1) if finding.toll_ns]
    return max(priced, key=lambda number: findings[number - 1].toll_ns or 0, default=None)


def _is_timed(finding: Finding) -> bool:
    """Return whether the toll is time before a step, which is measured by itself."""
    return bool(finding.figure("before_step_ns"))


def _cause(finding: Finding) -> Hashable:
    """Return what findings of one row have in common; None for one that shares its row with no other."""
    key = None if finding.remedy is None else finding.remedy.key
    if key is None or finding.kind == "straggler":
        return None
    return one_change(finding) if finding.toll_ns is None else (finding.severity, key)


def _counted(names: Sequence[str]) -> str:
    """Return `3 biases` of parameters that have one last name, else `3 parameters`."""
    last = {name.rpartition(".")[2] for name in names}
    noun = last.pop() if len(last) == 1 else "parameter"
    if noun not in ("bias", "weight"):
        noun = "parameter"
    return human.plural(len(names), noun, "biases" if noun == "bias" else None)
