"""Findings of a few kinds on real ranks: a fifth of the time of a report of everything.

All analyses look at all samples in test_incidents_strategies.
"""

from __future__ import annotations

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.needless import implicit_redistribute
from shardtoll.analyzers.findings.trust import incomplete_input, unmatched_collectives
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Ledger, Report
from shardtoll.profiler import Session
from tests.unit.analyzers.of_kinds import running

_FIND = (unmatched_collectives.find, incomplete_input.find, implicit_redistribute.find)


def report_of(session: Session, *kinds: str) -> Report | None:
    """Return the session's report with findings of these kinds alone; None where it has no report.

    `make fuzz` holds each of them to the whole report, see `running`.
    """
    ledger = session.ledger
    return None if ledger is None else running(*kinds)(ledger)


def kinds_of(ledger: Ledger) -> list[str]:
    """Return the kinds of findings about the records' completeness, and of implicit redistributions."""
    context = make_context(ledger, choose_fabric(ledger.run))
    return sorted({finding.kind for find in _FIND for finding in find(context)})
