"""The part of the headline that judges moving data, where that costs more than waiting for late ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.ledger import Finding

SLOW_FACTOR: Final = 2.0
"""Transfers that take this many times what is expected are slow."""

LARGE_SHARE: Final = 0.2
"""Share of all ranks' steps below which most of a step is something else: no network is then its fault."""


def dearest(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding the bill names first for its cost; None where none has a toll."""
    return next((finding for finding in findings if finding.toll_ns), None)


def clause(context: Context, share: float, factor: float | None, findings: Sequence[Finding]) -> str:
    """Return what is at fault as far as evidence goes.

    `share`: of exposed communication in the steps; `factor`: transfers over what is expected, None unknown.
    """
    first = dearest(findings)
    if first is not None and first.kind == "straggler":
        return "Both late ranks, no single one, and moving data cost"
    if factor is None:
        return "Moving data, not late ranks, is what costs"
    if factor < SLOW_FACTOR:
        return "Neither a late rank nor a slow network: what has to move is not hidden"
    if share < LARGE_SHARE:
        return "Communication is slow, but the smaller part of the step"
    if not context.on_cpu:
        return "The network is at fault, not a late rank"
    run = context.ledger.run
    hosts = len(set(run.hosts))
    if hosts == 1 or run.ranks_per_host == run.world_size:
        # One host has no network between its ranks.
        return (
            "Slow transfers, not a late rank, are at fault, and on one host CPU cores both compute and move "
            "data"
        )
    return "Slow transfers, not a late rank, are at fault: of the network, or of CPU cores that ranks share"
