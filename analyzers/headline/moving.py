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

UNHIDDEN: Final = "Exposed communication costs"

HEADS: Final = {
    "implicit-redistribute": "DTensor's implicit collectives cost",
    "redundant-collective": "Redundant communication costs",
    "sync-every-microbatch": "Reducing gradients on every micro-batch costs",
    "gathered-logits": "Gathering logits costs",
    "latency-bound": "Many small messages cost",
    "needless-barrier": "A needless barrier costs",
}
"""Kind of the most expensive finding -> what costs most, if no rank is late and the network not slow."""


def most_expensive(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding the bill names first for its cost; None if none has a toll."""
    return next((finding for finding in findings if finding.toll_ns), None)


def clause(context: Context, share: float, factor: float | None, findings: Sequence[Finding]) -> str:
    """Return what is at fault as far as evidence goes.

    `share`: of exposed communication in the steps; `factor`: transfers over what is expected, None unknown.
    """
    first = most_expensive(findings)
    if first is not None and first.kind == "straggler":
        return "Late ranks, no single one, and moving data both cost time"
    if factor is None:
        return "Moving data costs most, not late ranks"
    if factor < SLOW_FACTOR:
        what = HEADS.get(first.kind, UNHIDDEN) if first is not None else UNHIDDEN
        return f"{what} most, not a late rank or a slow network"
    if share < LARGE_SHARE:
        return "Communication is slow, but a small part of the step"
    if not context.on_cpu:
        return "The network is slow, and no rank is late"
    run = context.ledger.run
    hosts = len(set(run.hosts))
    if hosts == 1 or run.ranks_per_host == run.world_size:
        # One host has no network between its ranks.
        return "Transfers on this host are slow, and no rank is late"
    return "Transfers are slow (the network, or CPU cores that ranks share), and no rank is late"
