"""Origins of lateness: the rank that is slow by itself, and what the others' waiting for it costs.

A rank that comes late because it waited elsewhere is a victim. So ranks are compared with those that do the
same work, or with their own other steps. The step is replayed along its dependencies with the slow ranks as
fast as those. The slow ranks own the time that the job and each wait lose by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.as_peers import Own
from shardtoll.analyzers.findings.origins.compared import as_recorded, compared, fixed, mean_ns
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.replay.points.host_messages import NO_ROW
from shardtoll.analyzers.replay.points.point_replay import Replayed
from shardtoll.analyzers.shared.memo import once

Floats = npt.NDArray[np.float64]

LEAST_SAVING: Final = 0.03
"""Part of the job's step that a rank must cost to be an origin."""

STEADY: Final = 0.8
"""Part of the steps in which it must."""

CLEAR: Final = 0.05
"""Or the part that it must cost in the mean of the steps in which it is slow, if they are fewer."""

MOST_OF_IT: Final = 0.5
"""And its part of what all slow ranks cost: with less, ranks are slow by turns."""

MOST: Final = 4
"""Slow ranks that are looked at, those with most time beyond their peers' first."""


class Origin(Struct, frozen=True):
    """A rank that slows the job by itself. Times are means per step."""

    rank: int
    stage: int | None
    excess_ns: int
    """Its own time beyond its peers' median, or beyond its own over the steps."""
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
    slow_steps: tuple[int, ...]
    """Steps in which it costs that much."""
    steps: int
    """All that were replayed."""
    slowdown: float
    """How many times as long a step takes with this rank as without it: a slow step, if it is not steady."""
    to_itself: bool = False
    """Whether it has no peers, and is held to its other steps."""

    @property
    def steady(self) -> bool:
        """Whether it slows nearly every step."""
        return len(self.slow_steps) >= STEADY * self.steps


@once
def origins(context: Context) -> tuple[Origin, ...]:
    """Return the ranks at which lateness begins, the costliest first; see `compared` for where."""
    steps = compared(context)
    base = list(as_recorded(context))
    slow = _slow(steps, base)
    if not slow:
        return ()
    alike = alike_ranks(context)
    all_fixed = [fixed(step, slow) for step in steps]
    alone = {
        rank: [fixed(step, [other for other in slow if other != rank]) for step in steps] for rank in slow
    }
    costs = {
        rank: np.array(
            [1 - ideal.lasted_ns / partly.lasted_ns for ideal, partly in zip(all_fixed, each, strict=True)]
        )
        for rank, each in alone.items()
    }
    named = sorted(
        (rank for rank in slow if _matters(costs, rank)),
        key=lambda rank: -float(costs[rank].mean()),
    )
    made: list[Origin] = []
    before = base
    for nth, rank in enumerate(named):
        after = [fixed(step, named[: nth + 1]) for step in steps]
        places = np.flatnonzero(costs[rank] >= LEAST_SAVING).tolist()
        steady = len(places) >= STEADY * len(steps)
        over = range(len(steps)) if steady else places
        made.append(
            Origin(
                rank=rank,
                stage=alike.stages.get(rank),
                excess_ns=round(float(np.mean([step.excess_ns(rank) for step in steps]))),
                step_ns=mean_ns(base),
                without_ns=mean_ns(after),
                before_ns=mean_ns(before),
                alone_ns=mean_ns(alone[rank]),
                ideal_ns=mean_ns(all_fixed),
                caused_ns=_travelled_ns(context, steps, base, before, after),
                slow_steps=tuple(steps[place].graph.step for place in places),
                steps=len(steps),
                slowdown=_times([before[place] for place in over], [after[place] for place in over]),
                to_itself=not alike.peers.get(rank),
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


def _times(with_it: list[Replayed], without: list[Replayed]) -> float:
    return mean_ns(with_it) / max(1, mean_ns(without))


def _slow(steps: Sequence[Own], base: Sequence[Replayed]) -> list[int]:
    """Return the ranks with most time beyond their peers', those for which it may matter."""
    if not steps:
        return []
    lasted = mean_ns(list(base))
    ranks = {rank for step in steps for rank in step.compared}
    mean = {
        rank: float(np.mean([step.excess_ns(rank) for step in steps if rank in step.points]))
        for rank in ranks
    }
    slow = sorted(
        (rank for rank in ranks if mean[rank] >= LEAST_SAVING * lasted), key=lambda rank: -mean[rank]
    )
    return slow[:MOST]


def _matters(costs: Mapping[int, Floats], rank: int) -> bool:
    """Whether a rank costs the job enough: in nearly every step, or much, and most of it, in some."""
    mine = costs[rank]
    dear = mine >= LEAST_SAVING
    if mine.mean() < LEAST_SAVING or not dear.any():
        return False
    if dear.sum() >= STEADY * len(mine):
        return True
    lost = sum(float(np.maximum(each, 0.0).sum()) for each in costs.values())
    return bool(mine[dear].mean() >= CLEAR and mine[dear].sum() >= MOST_OF_IT * lost)


def _travelled_ns(
    context: Context,
    steps: Sequence[Own],
    base: Sequence[Replayed],
    before: Sequence[Replayed],
    after: Sequence[Replayed],
) -> pd.Series[int]:
    """Return the waiting on record that goes from one replay to the next, by row of collectives."""
    parts = []
    frame = context.in_alike
    for step, base_step, before_step, after_step in zip(steps, base, before, after, strict=True):
        graph = step.graph
        on_record = graph.index != NO_ROW
        index = graph.index[on_record]
        rows = frame.loc[index]
        waited = rows["waited_ns"].to_numpy(dtype=np.int64, na_value=0)
        ends = pd.DataFrame(
            {
                # If a rank waits for several at once, as a message sent and one received, it waits for them
                # together.
                "rank": rows["rank"].to_numpy(dtype=np.int64),
                "end": (rows["start_ns"] + rows["duration_ns"]).to_numpy(dtype=np.int64) // 1_000,
                "base": base_step.waited_ns[on_record],
                "gone": (before_step.waited_ns - after_step.waited_ns)[on_record],
            }
        )
        sums = ends.groupby(["rank", "end"])[["base", "gone"]].transform("sum")
        base_ns = sums["base"].to_numpy(dtype=np.float64)
        part = np.divide(
            sums["gone"].to_numpy(dtype=np.float64), base_ns, out=np.zeros(len(rows)), where=base_ns > 0
        )
        parts.append(pd.Series(np.floor(waited * np.clip(part, 0.0, 1.0)).astype(np.int64), index=index))
    caused: pd.Series[int] = pd.concat(parts)
    return caused[caused > 0]
