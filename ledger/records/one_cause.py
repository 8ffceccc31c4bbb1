"""Findings that have one cause, though each is of another kind: one fix ends them all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from shardtoll.ledger.records.finding import Finding

OWN_REASONS: Final = ("data-stall", "host-sync", "checkpoint-stall", "launch-bound", "transfer-stall")
"""Kinds of findings of one rank that make it late."""
CAUSED_BY: Final = {
    "wrong-gradient": ("unsynced-parameter",),
    "replica-drift": ("unsynced-parameter", "wrong-gradient"),
}
"""Kind of an error -> the kinds that cause it on the same parameter: what was never reduced has a wrong
gradient, and its replicas drift. Equal shards or a gradient that adds up on all ranks cause neither."""
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
    """Return place of an error -> place of the error above it that causes it, by `CAUSED_BY`.

    All its parameters must be among those of the cause. The cause itself and errors without a parameter have
    no entry.
    """
    errors = [place for place, finding in enumerate(findings) if finding.severity == "error"]
    causes: dict[int, int] = {}
    for place in errors:
        names, kinds = _parameters(findings[place]), CAUSED_BY.get(findings[place].kind, ())
        above = (each for each in errors if each < place and findings[each].kind in kinds)
        cause = next((each for each in above if names and names <= _parameters(findings[each])), None)
        if cause is not None:
            causes[place] = causes.get(cause, cause)
    return causes


def _parameters(finding: Finding) -> frozenset[str]:
    name = finding.where.parameter
    return frozenset(finding.parameters or (() if name is None else (name,)))


def one_change(finding: Finding) -> Hashable:
    """Return what findings without a toll that one change fixes have in common; None if that is unknown.

    They are of one place and cause, on the same ranks, and differ in the parameter alone.
    """
    key = None if finding.remedy is None else finding.remedy.key
    if key is None or finding.toll_ns is not None:
        return None
    place = replace(finding.where, parameter=None, module=None)
    return finding.severity, finding.cause, finding.ranks, place, key


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
