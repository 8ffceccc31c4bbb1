"""Which findings came, went and stayed between two bills."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.same_finding import paired, place
from shardtoll.ledger import Finding, Report
from shardtoll.ledger.comparison import FindingChange

FIRM: Final = (
    "implicit-redistribute",
    "redundant-collective",
    "sync-every-microbatch",
    "wide-dtype",
    "duplicated-data",
)
"""Kinds beside those of correctness that rest on what was done: times only say how dear it is."""


def findings(before: Report, after: Report) -> tuple[FindingChange, ...]:
    """Return each finding of both bills once: gone ones, new ones, then those that stayed."""
    was, now = (list(report.findings) for report in (before, after))
    numbers = [_numbers(bill) for bill in (was, now)]
    pairs = paired(was, now)
    new = [at for at in range(len(now)) if at not in set(pairs.values())]
    gone = [
        _change(one, numbers[0][at], None, (one.toll_ns, None))
        for at, one in enumerate(was)
        if at not in pairs
    ]
    came = [_change(now[at], None, numbers[1][at], (None, now[at].toll_ns)) for at in new]
    stayed = [
        _change(now[to], numbers[0][at], numbers[1][to], (was[at].toll_ns, now[to].toll_ns))
        for at, to in sorted(pairs.items())
    ]
    return (*gone, *came, *stayed)


def _numbers(bill: list[Finding]) -> list[int]:
    """Return each finding's number on the bill: errors first, otherwise as they stand."""
    order = sorted(range(len(bill)), key=lambda at: bill[at].severity != "error")
    numbers = [0] * len(bill)
    for number, at in enumerate(order, start=1):
        numbers[at] = number
    return numbers


def _change(
    one: Finding, before: int | None, after: int | None, tolls: tuple[int | None, int | None]
) -> FindingChange:
    return FindingChange(
        kind=one.kind,
        severity=one.severity,
        place=place(one.where),
        title=one.title,
        before=before,
        after=after,
        toll_ns=tolls,
        firm=one.family == "correctness" or one.kind in FIRM,
    )
