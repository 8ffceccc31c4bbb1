"""Where lateness begins: the rank that is slow by itself, and what the others' waiting for it costs.

A rank that comes late because it waited elsewhere is a victim. So ranks are compared with those that do the
same work, and the step is replayed along its dependencies with the slow ones as fast as those: what the job
and each wait lose by that is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.findings.stragglers.as_peers import Own
from shardtoll.analyzers.findings.stragglers.like_with_like import alike_ranks
from shardtoll.analyzers.replay.graph import graphs
from shardtoll.analyzers.replay.simulate import Replayed, replay
from shardtoll.analyzers.shared.memo import once

LEAST_SAVING: Final = 0.03
"""Part of the job's step that a rank must cost to be an origin."""

STEADY: Final = 0.8
"""Part of the steps in which it must."""

MOST: Final = 4
"""Slow ranks that are looked at, those with most time beyond their peers' first."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A rank that slows the job by itself. Times are means per step."""

    rank: int
    stage: int | None
    excess_ns: int
    """Its own time beyond its peers' median."""
    step_ns: int
    """The job's step as it is."""
    without_ns: int
    """The job's step with this rank, and the origins named before it, as their peers' median."""
    before_ns: int
    """The job's step with only those named before it so; `step_ns` for the first."""
    alone_ns: int
    """The job's step with all origins but this one so."""
    ideal_ns: int
    """The job's step with all origins so."""
    caused_ns: pd.Series[int]
    """By row of the collectives' frame: the exposed waiting that it causes."""
    late_steps: int
    """Steps in which it costs that much, and all that were replayed."""
    steps: int

    @property
    def slowdown(self) -> float:
        """How many times as long the step takes with this rank as without it."""
        return self.before_ns / self.without_ns if self.without_ns else 1.0


@once
def origins(context: Context) -> tuple[Origin, ...]:
    """Return the ranks at which lateness begins, the costliest first.

    Only where lateness can travel: between pipeline stages, or from one group to another. In a job with one
    group the rank that comes last is late by itself.
    """
    frame = context.in_alike
    if frame["group_id"].nunique() < 2 or crowded(context) is not None:
        return ()
    alike = alike_ranks(context)
    steps = [Own(graph, alike.peers) for graph in graphs(context)] if alike.peers else []
    if not steps:
        return ()
    slow = _slow(steps)
    if not slow:
        return ()
    base = [replay(own.graph) for own in steps]
    all_fixed = [replay(own.graph, own.with_fixed(slow)) for own in steps]
    alone = {
        rank: [_fixed(own, [other for other in slow if other != rank]) for own in steps] for rank in slow
    }
    found: list[int] = []
    costs: dict[int, list[float]] = {}
    for rank in slow:
        costs[rank] = [
            1 - ideal.lasted_ns / one.lasted_ns for ideal, one in zip(all_fixed, alone[rank], strict=True)
        ]
        often = sum(cost >= LEAST_SAVING for cost in costs[rank])
        if np.mean(costs[rank]) >= LEAST_SAVING and often >= STEADY * len(steps):
            found.append(rank)
    found.sort(key=lambda rank: -float(np.mean(costs[rank])))
    made: list[Origin] = []
    before = base
    for nth, rank in enumerate(found):
        after = [_fixed(own, found[: nth + 1]) for own in steps]
        made.append(
            Origin(
                rank=rank,
                stage=alike.stages.get(rank),
                excess_ns=round(float(np.mean([own.excess_ns(rank) for own in steps]))),
                step_ns=_mean(base),
                without_ns=_mean(after),
                before_ns=_mean(before),
                alone_ns=_mean(alone[rank]),
                ideal_ns=_mean(all_fixed),
                caused_ns=_caused(context, steps, base, before, after),
                late_steps=sum(cost >= LEAST_SAVING for cost in costs[rank]),
                steps=len(steps),
            )
        )
        before = after
    return tuple(made)


@once
def caused_ns(context: Context) -> pd.Series[int]:
    """Return, by row of the collectives' frame, the exposed waiting that all origins cause."""
    parts = [origin.caused_ns for origin in origins(context)]
    caused: pd.Series[int] = pd.concat(parts) if parts else pd.Series(dtype="int64")
    return caused.groupby(level=0).sum()


def _fixed(own: Own, ranks: list[int]) -> Replayed:
    return replay(own.graph, own.with_fixed(ranks))


def _mean(replays: list[Replayed]) -> int:
    return round(float(np.mean([each.lasted_ns for each in replays])))


def _slow(steps: list[Own]) -> list[int]:
    """Return the ranks with most time beyond their peers', those for which it may matter."""
    lasted = float(np.mean([replay(own.graph).lasted_ns for own in steps]))
    ranks = {rank for own in steps for rank in own.peers}
    mean = {
        rank: float(np.mean([own.excess_ns(rank) for own in steps if rank in own.points])) for rank in ranks
    }
    slow = sorted(
        (rank for rank in ranks if mean[rank] >= LEAST_SAVING * lasted), key=lambda rank: -mean[rank]
    )
    return slow[:MOST]


def _caused(
    context: Context, steps: list[Own], base: list[Replayed], before: list[Replayed], after: list[Replayed]
) -> pd.Series[int]:
    """Return the waiting on record that goes from one replay to the next, by row."""
    parts = []
    frame = context.in_alike
    for own, base_step, before_step, after_step in zip(steps, base, before, after, strict=True):
        graph = own.graph
        rows = frame.loc[graph.index]
        waited = rows["waited_ns"].to_numpy(dtype=np.int64, na_value=0)
        known = pd.DataFrame(
            {
                # What a rank waits for at once, as a message sent and one received, it waits for together.
                "rank": rows["rank"].to_numpy(dtype=np.int64),
                "end": (rows["start_ns"] + rows["duration_ns"]).to_numpy(dtype=np.int64) // 1_000,
                "base": base_step.waited_ns,
                "gone": before_step.waited_ns - after_step.waited_ns,
            }
        )
        sums = known.groupby(["rank", "end"])[["base", "gone"]].transform("sum")
        base_ns = sums["base"].to_numpy(dtype=np.float64)
        part = np.divide(
            sums["gone"].to_numpy(dtype=np.float64), base_ns, out=np.zeros(len(rows)), where=base_ns > 0
        )
        parts.append(
            pd.Series(np.floor(waited * np.clip(part, 0.0, 1.0)).astype(np.int64), index=graph.index)
        )
    caused: pd.Series[int] = pd.concat(parts)
    return caused[caused > 0]
