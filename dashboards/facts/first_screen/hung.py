"""The first screen of a job that hangs: the hang alone, and how many findings on costs there are."""

from __future__ import annotations

from shardtoll.ledger import Evidence, Finding, Report
from shardtoll.ledger.words import human

KIND = "hang"


def hang_of(report: Report) -> Finding | None:
    """Return the finding that the job hangs; None if it does not."""
    return next((finding for finding in report.findings if finding.kind == KIND), None)


def told(finding: Finding) -> list[tuple[str, str]]:
    """Return label and words of all that is known of a hang: who waits and for how long, the remedy last."""
    said = [(item.label, _words(item)) for item in finding.evidence]
    return said if finding.remedy is None else [*said, ("remedy", finding.remedy.text)]


def _words(item: Evidence) -> str:
    return human.quantity(item.value, item.unit)


def costs(report: Report) -> str | None:
    """Return how many findings are on the steps that finished before the hang; None without any."""
    count = sum(finding.severity != "error" for finding in report.findings)
    return f"{human.plural(count, 'finding')} on steps that finished" if count else None
