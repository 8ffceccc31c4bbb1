"""A step replayed: when each rank is done, and where it waits, with other own times than it had."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.replay.points.held_rows import fed_numbers
from shardtoll.analyzers.replay.points.point_graph import Graph

Ints = npt.NDArray[np.int64]


class Replayed(Struct, frozen=True):
    """The outcome of a replay."""

    lasted_ns: int
    """From the first rank's beginning to the last rank's end."""
    waited_ns: Ints
    """By row of the graph: how long its rank was blocked there before the last arrival."""


def replay(graph: Graph, own_ns: Ints | None = None) -> Replayed:
    """Return the step with these own times by point; with those on record if None."""
    own = (graph.own_ns if own_ns is None else own_ns).tolist()
    now = graph.begin_ns.tolist()
    match, moved = graph.match.tolist(), graph.moved_ns.tolist()
    feeds = fed_numbers(graph.feeds, graph.fed_by, graph.fed)
    last = [0] * (max((*match, *graph.feeds.tolist(), *graph.fed.tolist()), default=-1) + 1)
    arrived = [0] * len(match)
    waited = [0] * len(match)
    points = zip(graph.rank.tolist(), graph.row.tolist(), graph.done.tolist(), own, strict=True)
    for rank, row, done, own_time in points:
        time = now[rank] + own_time
        if done:
            number = match[row]
            latest = max(last[number], arrived[row]) if number >= 0 else arrived[row]
            if latest > time:
                waited[row] = latest - time
            time = max(time, latest + moved[row])
        elif row >= 0:
            arrived[row] = time
            for number in feeds[row]:
                if time > last[number]:
                    last[number] = time
        now[rank] = time
    return Replayed(max(now, default=0), np.array(waited, dtype=np.int64))
