"""The steps that are replayed, each rank held to its peers or to its own other steps."""

from __future__ import annotations

import numpy as np

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.findings.origins.as_peers import Own
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.findings.origins.over_steps import usual
from shardtoll.analyzers.replay.points.point_graph import graphs_with_messages
from shardtoll.analyzers.replay.points.point_replay import Replayed, replay
from shardtoll.analyzers.shared.memo import once


@once
def compared(context: Context) -> tuple[Own, ...]:
    """Return the steps in which lateness can travel: between pipeline stages, or from group to group.

    Empty if no rank can be compared. In a job with one group and no pipeline the rank that comes last is late
    by itself.
    """
    alike = alike_ranks(context)
    travels = bool(alike.stages) or context.in_alike["group_id"].nunique() > 1
    if not travels or crowded(context) is not None:
        return ()
    steps = graphs_with_messages(context)
    # Ranks that share a machine's cores delay each other in some steps, by chance.
    by_step = [{} for _ in steps] if context.on_cpu else usual(steps, alike.peers)
    owns = tuple(Own(graph, alike.peers, of_step) for graph, of_step in zip(steps, by_step, strict=True))
    return owns if any(own.compared for own in owns) else ()


@once
def as_recorded(context: Context) -> tuple[Replayed, ...]:
    """Return the steps of `compared`, replayed as they were."""
    return tuple(replay(own.graph) for own in compared(context))


def fixed(own: Own, ranks: list[int]) -> Replayed:
    """Return the step replayed with these ranks as fast as what they are held to."""
    return replay(own.graph, own.with_fixed(ranks))


def mean_ns(replays: tuple[Replayed, ...] | list[Replayed]) -> int:
    """Return how long the steps take in the mean."""
    return round(float(np.mean([each.lasted_ns for each in replays])))
