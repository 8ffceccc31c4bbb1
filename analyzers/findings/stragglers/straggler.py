"""The rank for which the others wait, and what it did when they had arrived."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers import origin_finding
from shardtoll.analyzers.findings.stragglers.late_bills import Bill, bills
from shardtoll.analyzers.findings.stragglers.late_chance import worth_a_warning
from shardtoll.analyzers.findings.stragglers.late_habit import habit_finding
from shardtoll.analyzers.findings.stragglers.late_turns import turns_finding
from shardtoll.ledger import Finding, Severity


def find(context: Context) -> list[Finding]:
    """Return one finding a rank that is late by habit, and one for waiting on ranks that take turns.

    Toll: exposed waiting per step on the rank that waits most; `exposed-communication` leaves it out. Steps
    that one rank surveyed and another watched are not looked at, where there are others: the wait is for
    capture there. The saving is against the late rank arriving with the second-to-last one. If ranks were not
    seen, waiting for the last of those seen is a lower bound, and the finding says so. Ranks that share CPU
    cores delay each other. Then a notice says so, and only a rank that slept meanwhile is a finding.
    """
    rows, dear = bills(context)
    besides = any(bill.rank is not None for bill in dear)
    return [_finding(context, rows, bill, besides) for bill in dear]


def _finding(context: Context, rows: pd.DataFrame, bill: Bill, besides: bool) -> Finding:
    if bill.origin is not None:
        toll = bill.line.figures["waited_ns"] or 0
        habit = bill.origin.steady or len(bill.origin.slow_steps) > 1
        severity: Severity = "warning" if habit and worth_a_warning(context, toll) else "info"
        return origin_finding.finding(context, bill.origin, bill.rows, bill.line, severity)
    if bill.rank is None:
        return turns_finding(context, bill.rows, bill.line, besides)
    return habit_finding(context, bill.rank, rows, bill.rows, bill.line)
