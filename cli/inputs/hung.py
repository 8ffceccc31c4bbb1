"""A run that hung says so on its bill: what its flight files show is one more finding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardtoll.ledger import Finding, Report
from shardtoll.ledger.disk.run_files import flights_in


def with_hang(report: Report, folder: Path) -> Report:
    """Return the report with a finding `hang` in front if the run's ranks wait for each other.

    A run without flight files, or whose flight files cannot be read, keeps its report as it is.
    """
    if not flights_in(folder):
        return report
    from shardtoll.analyzers.hang.diagnose import diagnose
    from shardtoll.cli.inputs.flights import flights_of
    from shardtoll.ledger.records.finding import ranked

    flights, now_ns, _ = flights_of(folder)
    answer = diagnose(flights, now_ns) if flights else None
    if answer is None or not answer.hang:
        return report
    return _renumbered(report, ranked((*answer.findings, *report.findings)))


def _renumbered(report: Report, findings: tuple[Finding, ...]) -> Report:
    """Return the report with these findings, its own among them; numbers of those stay right."""
    place = {id(finding): number for number, finding in enumerate(findings, start=1)}
    new = {number: place[id(finding)] for number, finding in enumerate(report.findings, start=1)}
    overlaps = tuple(
        replace(each, findings=tuple(new[number] for number in each.findings)) for each in report.overlaps
    )
    foreseen = report.foreseen
    if foreseen is not None:
        changes = tuple(
            each if each.number is None else replace(each, number=new[each.number])
            for each in foreseen.changes
        )
        foreseen = replace(foreseen, changes=changes)
    return replace(report, findings=findings, overlaps=overlaps, foreseen=foreseen)
