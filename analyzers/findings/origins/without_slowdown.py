"""How much longer the job takes for each slow worker, each stage and in each step.

Published straggler studies count it so: the step with all ranks but these as their peers' median, over the
step with every rank so. Both are replayed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.compared import as_recorded, compared, fixed, mean_ns
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.shared.memo import once

MOST_RANKS: Final = 8
"""Ranks whose slowdown is replayed: those with most time beyond what they are held to."""

MOST_STAGES: Final = 16

MOST_POINTS: Final = 4_000_000
"""Arrivals that are replayed for these figures: of larger jobs fewer ranks and stages are looked at."""


class Slowdowns(Struct, frozen=True):
    """How many times as long the job takes; 1 is no slowdown."""

    job: float
    """As it is, over all ranks as what they are held to."""
    ranks: dict[int, float]
    """With only this rank as it is."""
    stages: dict[int, float]
    """With only the ranks of this stage as they are; empty without pipelines."""
    steps: dict[int, float]
    """By step: `job` of this step alone."""


@once
def slowdowns(context: Context) -> Slowdowns | None:
    """Return the slowdowns; None if no step can be compared by replay."""
    steps = compared(context)
    if not steps:
        return None
    base = as_recorded(context)
    # A rank that is faster than its peers is not made slower.
    slow = [[rank for rank in own.compared if own.excess_ns(rank) > 0] for own in steps]
    ideal = [fixed(own, ranks) for own, ranks in zip(steps, slow, strict=True)]
    left = MOST_POINTS // max(1, sum(len(own.graph.rank) for own in steps))

    def only(ranks: set[int]) -> float:
        replays = [
            fixed(own, [rank for rank in each if rank not in ranks])
            for own, each in zip(steps, slow, strict=True)
        ]
        return mean_ns(replays) / max(1, mean_ns(ideal))

    excess = {
        rank: float(np.mean([own.excess_ns(rank) for own in steps if rank in own.points]))
        for rank in {rank for own in steps for rank in own.compared}
    }
    slowest = sorted((rank for rank in excess if excess[rank] > 0), key=lambda rank: -excess[rank])
    by_stage: dict[int, set[int]] = {}
    for rank, stage in alike_ranks(context).stages.items():
        if rank in excess:
            by_stage.setdefault(stage, set()).add(rank)
    if len(by_stage) > min(left // 2, MOST_STAGES):
        by_stage = {}
    return Slowdowns(
        job=mean_ns(list(base)) / max(1, mean_ns(ideal)),
        ranks={rank: only({rank}) for rank in slowest[: max(0, min(MOST_RANKS, left - len(by_stage)))]},
        stages={stage: only(ranks) for stage, ranks in sorted(by_stage.items())},
        steps={
            own.graph.step: one.lasted_ns / max(1, other.lasted_ns)
            for own, one, other in zip(steps, base, ideal, strict=True)
        },
    )
