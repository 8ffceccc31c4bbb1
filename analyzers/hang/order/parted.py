"""The place at which programs parted, also if something else is to blame: it may be why that came about."""

from __future__ import annotations

from shardtoll.analyzers.hang.order.divergence import first_divergence
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.ledger.answers.hang import Divergence


def parted(job: Job) -> Divergence | None:
    """Return where programs first differ if ranks did not get past it; None if they did, or do not differ.

    Ranks may take branches of their own, and sizes may differ, if all of them go on.
    """
    divergence = first_divergence(job)
    if divergence is None:
        return None
    both = divergence.call, divergence.others_call
    if all(call.finished_ns is not None for call in both) and divergence.what not in ("skipped", "extra"):
        return None
    return divergence
