"""Findings that have one cause, though each is of another kind: one fix ends them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.ledger.records.finding import Finding

CONSEQUENCES: Final = ("wrong-gradient", "replica-drift")
"""Kinds of errors that another error of the same parameter may cause, which stands above them."""
OWN_REASONS: Final = ("data-stall", "host-sync", "checkpoint-stall", "launch-bound", "transfer-stall")
"""Kinds of findings of one rank that make it late."""
MOST_OF_IT: Final = 0.5
"""Part of the waiting for a rank that its own reason must cost."""


def of_late_launches(findings: Sequence[Finding]) -> list[int]:
    """Return the places of findings that hosts cause which launch late; empty if they are of one kind only.

    Some ranks wait for launches, and another rank is late because its own host launches even later.
    """
    bound = [place for place, finding in enumerate(findings) if finding.kind == "launch-bound"]
    late = [place for place, finding in enumerate(findings) if finding.figure("late_launches_ns") is not None]
    return sorted([*bound, *late]) if bound and late else []


def of_one_parameter(findings: Sequence[Finding]) -> dict[int, int]:
    """Return place of an error -> place of the error that causes it: of the same parameter, and above it.

    A parameter that was never reduced has a wrong gradient, and its replicas drift. The cause itself and
    errors without a parameter have no entry.
    """
    first: dict[str, int] = {}
    causes: dict[int, int] = {}
    for place, finding in enumerate(findings):
        name = finding.where.parameter
        if finding.severity != "error" or finding.family != "correctness" or name is None:
            continue
        cause = first.setdefault(name, place)
        if cause != place and finding.kind in CONSEQUENCES and finding.kind != findings[cause].kind:
            causes[place] = cause
    return causes


def own_reason(findings: Sequence[Finding], rank: int) -> int | None:
    """Return the place of the first finding that says why this rank is late; None without one.

    It is of this rank alone, and costs most of what others wait for the rank if that is known.
    """
    late = [finding for finding in findings if finding.kind == "straggler" and finding.ranks == (rank,)]
    least = MOST_OF_IT * max((finding.toll_ns or 0 for finding in late), default=0)
    for place, finding in enumerate(findings):
        alone = finding.kind in OWN_REASONS and finding.ranks == (rank,)
        if alone and finding.toll_ns and finding.toll_ns >= least:
            return place
    return None


def of_own_reason(findings: Sequence[Finding]) -> tuple[int, int] | None:
    """Return the places of a late rank's own reason and of its lateness; None if no rank has both."""
    for late, finding in enumerate(findings):
        if finding.kind != "straggler" or len(finding.ranks) != 1 or not finding.toll_ns:
            continue
        own = own_reason(findings, finding.ranks[0])
        if own is not None:
            return own, late
    return None
