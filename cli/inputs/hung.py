"""A run that hung says so on its bill: what its flight files show is one more finding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardtoll.ledger import Report
from shardtoll.ledger.disk.run_files import flights_in


def with_hang(report: Report, folder: Path) -> Report:
    """Return the report with a finding `hang` in front if the run's ranks wait for each other.

    A run without flight files, or of which they cannot be read, keeps its report as it is.
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
    return replace(report, findings=ranked((*answer.findings, *report.findings)))
