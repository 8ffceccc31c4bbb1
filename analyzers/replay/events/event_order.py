"""In which order the events of a graph happen, whatever they last: found once, used for every simulation.

An event is the arrival of a node or its completion. Kahn's algorithm over the edges, lanes and rendezvous.

The order of events of wide graphs, of hundreds of ranks: all events of a level at once, in numpy.

The levels are those that the loop of `event_order` finds; events of one level come in another order there.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.replay.events.event_graph import EventGraph, Role

Ints = npt.NDArray[np.int64]

Bytes = npt.NDArray[np.uint8]

_FEEDS, _WAITS = int(Role.FEEDS), int(Role.WAITS)

LEAST_READY: Final = 64
"""Nodes that wait for nothing from which on a graph may be wide."""

TRIED: Final = 1_000
"""Levels after which a graph whose levels are narrow is left to the loop."""

NARROW: Final = 24
"""Nodes a level up to which the loop is faster."""


class DeadlockError(ValueError):
    """Nodes wait for each other, so none of them can ever go on. `nodes` are those that never end."""

    def __init__(self, nodes: Ints) -> None:
        super().__init__(f"{len(nodes)} nodes wait for each other for ever, the first is node {nodes[:1]}")
        self.nodes = nodes


class Order(Struct, frozen=True):
    """The order of events and the edges by the node that waits. Holds for all durations, gaps and lags."""

    before: Ints
    """[n + m] Node whose end is waited for; of lane edges the lane's node before, -1 for the first."""
    starts: Ints
    """[n + 1] Where the edges of each node begin; its lane edge is the first."""
    edge: Ints
    """[n + m] Place in the graph's edges; -1 for a lane edge."""
    events: list[int]
    """Nodes in order of completion, as `node`, and arrivals at a rendezvous before it, as `~node`."""
    level: Ints
    """[n] By node, of its completion: events of one level wait for none of each other."""
    arrival_level: Ints
    """[n]"""
    role: Bytes
    """[n] The nodes' roles; who was forced to go on without its rendezvous has `Role.FEEDS`."""


def lane_before_of(lane: Ints) -> Ints:
    """Return for each node the one before it on its lane; -1 for the first, and if it has no lane."""
    order = np.argsort(lane, kind="stable")
    before = np.full(len(lane), -1, dtype=np.int64)
    same = (lane[order[1:]] == lane[order[:-1]]) & (lane[order[1:]] >= 0)
    before[order[1:][same]] = order[:-1][same]
    return before


def order_of(graph: EventGraph, *, force: bool = False) -> Order:
    """Return the order of a graph's events.

    Raises `DeadlockError` if nodes wait for each other. With `force`, as contradictory records need it, the
    first of them that stands at a rendezvous goes on without the others.
    """
    n = len(graph)
    to = np.concatenate([np.arange(n), graph.edge_to])
    before = np.concatenate([lane_before_of(graph.lane), graph.edge_from])
    edge = np.concatenate([np.full(n, -1, dtype=np.int64), np.arange(len(graph.edge_to))])
    by_to = np.argsort(to, kind="stable")
    before, edge = before[by_to], edge[by_to]
    starts = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=n))]).astype(np.int64)
    wide = _wide_levels(graph, to[by_to], before)
    if wide is not None:
        level, arrival_level = wide
        events, role = _events_of(graph, level, arrival_level), graph.role.astype(np.uint8)
    else:
        events, level, arrival_level, role = _events(graph, to[by_to], before, force)
    return Order(before, starts, edge, events, level, arrival_level, role)


def _events(graph: EventGraph, to: Ints, before: Ints, force: bool) -> tuple[list[int], Ints, Ints, Bytes]:
    """Return events, levels, levels of arrivals and the roles that hold: who was forced waits for nobody."""
    n = len(graph)
    real = before >= 0
    after = to[real][np.argsort(before[real], kind="stable")].tolist()
    first_after = np.concatenate([[0], np.cumsum(np.bincount(before[real], minlength=n))]).tolist()
    awaited_array = np.bincount(to[real], minlength=n)
    ready = deque(np.flatnonzero(awaited_array == 0).tolist())
    awaited, meet, role = awaited_array.tolist(), graph.meet.tolist(), graph.role.tolist()
    feeds = (graph.meet >= 0) & (graph.role != Role.WAITS)
    missing = np.bincount(graph.meet[feeds], minlength=int(graph.meet.max(initial=-1)) + 1).tolist()
    last_level = [0] * len(missing)
    standing: dict[int, list[int]] = {}
    arrival_level, level = [0] * n, [0] * n
    events: list[int] = []
    left = n
    while left:
        if ready:
            node = ready.popleft()
            number = meet[node]
            done = [node]
            if number >= 0:
                events.append(~node)
                if role[node] != _WAITS:
                    missing[number] -= 1
                    last_level[number] = max(last_level[number], arrival_level[node])
                    if not missing[number]:
                        done += standing.pop(number, ())
                if missing[number] and role[node] != _FEEDS:
                    standing.setdefault(number, []).append(node)
                    continue
        else:
            done = [_forced(standing, role, force, level, events)]
        for node in done:
            number, here = meet[node], arrival_level[node]
            if number >= 0 and role[node] != _FEEDS and last_level[number] > here:
                here = last_level[number]
            level[node] = here
            events.append(node)
            here += 1
            for other in after[first_after[node] : first_after[node + 1]]:
                if here > arrival_level[other]:
                    arrival_level[other] = here
                awaited[other] -= 1
                if not awaited[other]:
                    ready.append(other)
        left -= len(done)
    return (
        events,
        np.array(level, dtype=np.int64),
        np.array(arrival_level, dtype=np.int64),
        np.array(role, dtype=np.uint8),
    )


def _forced(
    standing: dict[int, list[int]], role: list[int], force: bool, level: list[int], events: list[int]
) -> int:
    """Let the first node that stands at a rendezvous go on, and return it."""
    if not force or not standing:
        ended = np.array([event for event in events if event >= 0], dtype=np.int64)
        raise DeadlockError(np.setdiff1d(np.arange(len(level)), ended))
    number, nodes = min(standing.items(), key=lambda each: min(each[1]))
    node = min(nodes)
    nodes.remove(node)
    if not nodes:
        del standing[number]
    role[node] = _FEEDS
    return node


def _wide_levels(graph: EventGraph, to: Ints, before: Ints) -> tuple[Ints, Ints] | None:
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


def _events_of(graph: EventGraph, level: Ints, arrival: Ints) -> list[int]:
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
