"""The order of events of wide graphs, of hundreds of ranks: all events of a level at once, in numpy.

The levels are those that the loop of `event_order` finds; events of one level come in another order there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.event_graph import EventGraph, Role

Ints = npt.NDArray[np.int64]

LEAST_READY: Final = 64
"""Nodes that wait for nothing from which on a graph may be wide."""
TRIED: Final = 1_000
"""Levels after which a graph whose levels are narrow is left to the loop."""
NARROW: Final = 24
"""Nodes a level up to which the loop is faster."""


def wide_levels(graph: EventGraph, to: Ints, before: Ints) -> tuple[Ints, Ints] | None:
    """Return levels of completions and of arrivals, [n] each; `to` and `before` are edges, -1 for no node.

    None if the graph is narrow, or if nodes wait for each other for ever: the loop says which.
    """
    n = len(graph)
    real = before >= 0
    awaited = np.bincount(to[real], minlength=n)
    ready = np.flatnonzero(awaited == 0)
    if len(ready) < LEAST_READY:
        return None
    after, first = _grouped(before[real], to[real], n)
    meet, count = graph.meet, int(graph.meet.max(initial=-1)) + 1
    feeds = (meet >= 0) & (graph.role != Role.WAITS)
    waits = (meet >= 0) & (graph.role != Role.FEEDS)
    missing = np.bincount(meet[feeds], minlength=count)
    waiters = np.flatnonzero(waits)
    at_meet, first_at = _grouped(meet[waiters], waiters, count)
    arrival, level = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    here, left = 0, n
    while len(ready):
        if here == TRIED and n - left < NARROW * TRIED:
            return None
        arrival[ready] = here
        fed = meet[ready[feeds[ready]]]
        np.subtract.at(missing, fed, 1)
        stands = waits[ready]
        through = ready[stands]
        done = [ready[~stands], through[missing[meet[through]] == 0]]
        complete = np.unique(fed[missing[fed] == 0])
        standing = at_meet[_places(first_at, complete)]
        # Those that arrive now are among `through`.
        done.append(standing[(arrival[standing] >= 0) & (arrival[standing] < here)])
        ended = np.concatenate(done)
        level[ended] = here
        left -= len(ended)
        following = after[_places(first, ended)]
        np.subtract.at(awaited, following, 1)
        ready = np.unique(following[awaited[following] == 0])
        here += 1
    return None if left else (level, arrival)


def events_of(graph: EventGraph, level: Ints, arrival: Ints) -> list[int]:
    """Return nodes in order of completion, as `node`, and arrivals at a rendezvous before it, as `~node`."""
    nodes = np.arange(len(graph))
    meets = nodes[graph.meet >= 0]
    events = np.concatenate([~meets, nodes])
    at = np.concatenate([2 * arrival[meets], 2 * level + 1])
    ordered: list[int] = events[np.argsort(at, kind="stable")].tolist()
    return ordered


def _grouped(key: Ints, values: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the values by key, and where each key's begin, [count + 1]."""
    first = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))]).astype(np.int64)
    return values[np.argsort(key, kind="stable")], first


def _places(first: Ints, keys: Ints) -> Ints:
    """Return the places of all values of these keys."""
    counts = first[keys + 1] - first[keys]
    total = int(counts.sum())
    skipped = np.repeat(first[keys] - np.cumsum(counts) + counts, counts)
    places: Ints = skipped + np.arange(total)
    return places
