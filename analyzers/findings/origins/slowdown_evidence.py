"""The what-if figures of a slow rank: the job's slowdown by workers, stages and steps, as evidence.

How much longer the job takes for each slow worker, each stage and in each step.

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
from shardtoll.analyzers.findings.origins.origin import Origin
from shardtoll.analyzers.shared.memo import once
from shardtoll.ledger import Evidence, Figure

LEAST: Final = 1.01
"""A slowdown that is worth a name; less is what ranks differ by anyway."""

SHOWN: Final = 6
"""Ranks, stages or steps that are listed."""

MOST_RANKS: Final = 8
"""Ranks whose slowdown is replayed: those with most time beyond what they are held to."""

MOST_STAGES: Final = 16

MOST_POINTS: Final = 4_000_000
"""Arrivals that are replayed for these figures: of larger jobs fewer ranks and stages are looked at."""


def slowdown_evidence(context: Context) -> tuple[Evidence, ...]:
    """Return what slows the job with and without each worker, stage and step, as far as it differs."""
    slowdowns = _slowdowns(context)
    if slowdowns is None:
        return ()
    lines = [
        Evidence("slowdown of the job by all ranks beyond their peers", round(slowdowns.job, 3), "times")
    ]
    if len(slowdowns.ranks) > 1:
        lines.append(Evidence("slowdown by each rank alone", _listed("rank", slowdowns.ranks)))
    if len(slowdowns.stages) > 1:
        lines.append(
            Evidence("slowdown by each stage alone, all its ranks", _listed("stage", slowdowns.stages))
        )
    if len(slowdowns.steps) > 1:
        lines.append(Evidence("slowdown of each step", _steps(slowdowns.steps)))
    return tuple(lines)


def slowdown_figures(context: Context, origin: Origin) -> tuple[Figure, ...]:
    """Return the same for programs; figures that are unknown are left out."""
    figures = [
        Figure("slowdown", round(origin.slowdown, 4), "x"),
        Figure("slowdown_alone", round(origin.alone_ns / max(1, origin.ideal_ns), 4), "x"),
        Figure("slow_steps", len(origin.slow_steps), "count"),
        Figure("replayed_steps", origin.steps, "count"),
    ]
    slowdowns = _slowdowns(context)
    if slowdowns is not None:
        figures.append(Figure("slowdown_of_job", round(slowdowns.job, 4), "x"))
        figures.append(Figure("slowdown_of_worst_step", round(max(slowdowns.steps.values()), 4), "x"))
        figures += _of_stage(slowdowns, origin.stage)
    return tuple(figures)


def _of_stage(told: _Slowdowns, stage: int | None) -> list[Figure]:
    if stage is None or stage not in told.stages:
        return []
    others = [times for number, times in told.stages.items() if number != stage]
    return [
        Figure("slowdown_of_stage", round(told.stages[stage], 4), "x"),
        *([Figure("slowdown_of_other_stages", round(max(others), 4), "x")] if others else []),
    ]


def _listed(word: str, times: dict[int, float]) -> str:
    """Return `rank 0: 1.97; the others less than 1.01`."""
    order = sorted(times, key=lambda number: -times[number])
    shown = [number for number in order if times[number] >= LEAST][:SHOWN]
    named = ", ".join(f"{word} {number}: {times[number]:.3g}" for number in shown)
    rest = [times[number] for number in order if number not in shown]
    if not rest:
        return named
    most = f"less than {LEAST:.3g}" if max(rest) < LEAST else f"at most {max(rest):.3g}"
    the_others = f"the others {most}" if len(rest) > 1 else f"the other {word} {most}"
    return f"{named}; {the_others}" if named else f"all {most}"


def _steps(times: dict[int, float]) -> str:
    """Return `35: 1.96, 36: 1.92`; of many steps the range, and the step with most."""
    if len(times) <= SHOWN:
        return ", ".join(f"step {step}: {value:.3g}" for step, value in times.items())
    worst = max(times, key=lambda step: times[step])
    return f"{min(times.values()):.3g} to {times[worst]:.3g}, most in step {worst}"


class _Slowdowns(Struct, frozen=True):
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
def _slowdowns(context: Context) -> _Slowdowns | None:
    """Return the slowdowns; None if no step can be compared by replay."""
    steps = compared(context)
    if not steps:
        return None
    base = as_recorded(context)
    # A rank that is faster than its peers is not made slower.
    slow = [[rank for rank in step.compared if step.excess_ns(rank) > 0] for step in steps]
    ideal = [fixed(step, ranks) for step, ranks in zip(steps, slow, strict=True)]
    left = MOST_POINTS // max(1, sum(len(step.graph.rank) for step in steps))

    def only(ranks: set[int]) -> float:
        replays = [
            fixed(step, [rank for rank in each if rank not in ranks])
            for step, each in zip(steps, slow, strict=True)
        ]
        return mean_ns(replays) / max(1, mean_ns(ideal))

    excess = {
        rank: float(np.mean([step.excess_ns(rank) for step in steps if rank in step.points]))
        for rank in {rank for step in steps for rank in step.compared}
    }
    slowest = sorted((rank for rank in excess if excess[rank] > 0), key=lambda rank: -excess[rank])
    by_stage: dict[int, set[int]] = {}
    for rank, stage in alike_ranks(context).stages.items():
        if rank in excess:
            by_stage.setdefault(stage, set()).add(rank)
    if len(by_stage) > min(left // 2, MOST_STAGES):
        by_stage = {}
    return _Slowdowns(
        job=mean_ns(list(base)) / max(1, mean_ns(ideal)),
        ranks={rank: only({rank}) for rank in slowest[: max(0, min(MOST_RANKS, left - len(by_stage)))]},
        stages={stage: only(ranks) for stage, ranks in sorted(by_stage.items())},
        steps={
            step.graph.step: recorded.lasted_ns / max(1, other.lasted_ns)
            for step, recorded, other in zip(steps, base, ideal, strict=True)
        },
    )
