"""Findings that have one cause, though each is of another kind: one fix ends them all."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.ledger.records.finding import Finding


def of_late_launches(findings: Sequence[Finding]) -> list[int]:
    """Return the places of findings that hosts cause which launch late; empty if they are of one kind only.

    Some ranks wait for launches, and another rank is late because its own host launches even later.
    """
    bound = [place for place, finding in enumerate(findings) if finding.kind == "launch-bound"]
    late = [place for place, finding in enumerate(findings) if finding.figure("late_launches_ns") is not None]
    return sorted([*bound, *late]) if bound and late else []
