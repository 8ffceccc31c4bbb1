"""The discrete-event engine: when each node of an event graph starts and ends. Deterministic; numpy only.

Times depend on each other through maxima and sums alone, in an order that durations do not change
(`event_order`). So one pass over the events in that order is the whole simulation. Graphs as wide as they are
long, of hundreds of ranks, go level by level in numpy. Others go event by event in Python, which is faster if
few events are independent. Both give the same bits. Neither needs a compiler.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.contention import Contention
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Role
from shardtoll.analyzers.replay.events.event_order import Order, order_of
from shardtoll.analyzers.replay.events.outcome import Outcome

Ints = npt.NDArray[np.int64]

Floats = npt.NDArray[np.float64]

WIDE: Final = 24
"""From as many nodes a level on, numpy is faster than a loop."""


def simulate(
    graph: EventGraph,
    durations: Floats | None = None,
    contention: Contention | None = None,
    *,
    order: Order | None = None,
    force: bool = False,
) -> Outcome:
    """Return when each node of the graph starts and ends.

    `durations`, [n] in ns, stand in for the graph's own. `order`, from `order_of`, saves finding it again
    for another simulation of the same lanes, edges and rendezvous. Raises `DeadlockError` if nodes wait for
    each other. With `force` those go on that stand at a rendezvous which can never be complete.
    """
    order = order_of(graph, force=force) if order is None else order
    own = graph.duration_ns if durations is None else durations
    outcome = _once(graph, own, order)
    if contention is not None:
        for _ in range(contention.passes):
            outcome = _once(graph, contention.slowed(graph, own, outcome), order)
    return outcome


def _once(graph: EventGraph, durations: Floats, order: Order) -> Outcome:
    lag = np.where(order.edge < 0, 0.0, graph.lag_ns[order.edge]) if len(graph.lag_ns) else None
    delay = np.zeros(len(order.edge)) if lag is None else lag
    delay[order.starts[:-1]] += graph.gap_ns
    levels = int(order.level.max(initial=-1)) + 1
    sweep = _by_levels if len(graph) >= WIDE * levels else _by_events
    arrival, end = sweep(graph, durations, order, delay)
    waits = (graph.meet >= 0) & (order.role != Role.FEEDS)
    last = np.arange(len(graph))
    start = arrival
    if waits.any():
        last, start = _last(graph, order, arrival, waits)
    return Outcome(arrival, start, end, durations, last, _held_by(graph, order, arrival, end, delay))


def _by_events(graph: EventGraph, durations: Floats, order: Order, delay: Floats) -> tuple[Floats, Floats]:
    n = len(graph)
    # The node after the last ends before everything: it stands for the predecessor of who has none.
    end = [0.0] * n + [-np.inf]
    arrival = graph.release_ns.tolist()
    met = [0.0] * (int(graph.meet.max(initial=-1)) + 1)
    duration, starts, meet = durations.tolist(), order.starts.tolist(), graph.meet.tolist()
    before, delays, role = order.before.tolist(), delay.tolist(), order.role.tolist()
    feeds, waits = int(Role.FEEDS), int(Role.WAITS)
    for event in order.events:
        node = event if event >= 0 else ~event
        if event < 0 or meet[node] < 0:
            time = arrival[node]
            for place in range(starts[node], starts[node + 1]):
                other = end[before[place]] + delays[place]
                if other > time:
                    time = other
            arrival[node] = time
            if event < 0:
                # An edited graph may have taken it out of its rendezvous.
                if meet[node] >= 0 and role[node] != waits and time > met[meet[node]]:
                    met[meet[node]] = time
                continue
        else:
            time = arrival[node]
            if role[node] != feeds and met[meet[node]] > time:
                time = met[meet[node]]
        end[node] = time + duration[node]
    return np.array(arrival), np.array(end[:-1])


def _last(
    graph: EventGraph, order: Order, arrival: Floats, waits: npt.NDArray[np.bool_]
) -> tuple[Ints, Floats]:
    """Return for each node the one that it had to wait for at its rendezvous, and its start."""
    feeds = np.flatnonzero((graph.meet >= 0) & (order.role != Role.WAITS))
    # If arrivals are equal, the lowest node counts as the last.
    sort = feeds[np.lexsort((-feeds, arrival[feeds]))]
    latest = np.full(int(graph.meet.max()) + 1, -1, dtype=np.int64)
    latest[graph.meet[sort]] = sort
    last = np.arange(len(graph))
    there = np.where(waits, latest[graph.meet], -1)
    later = (there >= 0) & (arrival[there] > arrival)
    last[later] = there[later]
    return last, arrival[last]


def _held_by(graph: EventGraph, order: Order, arrival: Floats, end: Floats, delay: Floats) -> Ints:
    """Return for each node the first of those before it whose end and delay give its arrival."""
    held = np.full(len(graph), -1, dtype=np.int64)
    to = np.repeat(np.arange(len(graph)), np.diff(order.starts))
    # A delay of no edge, before the first node of a lane, holds nobody up.
    binding = np.flatnonzero((order.before >= 0) & (end[order.before] + delay >= arrival[to]))[::-1]
    held[to[binding]] = order.before[binding]
    return held


def _by_levels(graph: EventGraph, durations: Floats, order: Order, delay: Floats) -> tuple[Floats, Floats]:
    """Return arrivals and ends, [n] each; `delay` [n + m] by edge of the order."""
    n = len(graph)
    end = np.append(np.zeros(n), -np.inf)
    arrival = graph.release_ns.copy()
    met = np.zeros(int(graph.meet.max(initial=-1)) + 1)
    feeds = (graph.meet >= 0) & (order.role != Role.WAITS)
    waits = (graph.meet >= 0) & (order.role != Role.FEEDS)
    arriving, arrive_at = _by_level(order.arrival_level)
    ending, end_at = _by_level(order.level)
    counts = np.diff(order.starts)[arriving]
    places = np.repeat(order.starts[:-1][arriving], counts) + _within(counts)
    before, delays = order.before[places], delay[places]
    first = np.concatenate([[0], np.cumsum(counts)])
    fed_at = np.concatenate([[0], np.cumsum(feeds[arriving])])
    fed = arriving[feeds[arriving]]
    for level in range(len(end_at) - 1):
        begin, stop = arrive_at[level], arrive_at[level + 1]
        if begin < stop:
            nodes = arriving[begin:stop]
            edges = slice(first[begin], first[stop])
            latest = np.maximum.reduceat(end[before[edges]] + delays[edges], first[begin:stop] - first[begin])
            arrival[nodes] = np.maximum(arrival[nodes], latest)
            feeders = fed[fed_at[begin] : fed_at[stop]]
            if len(feeders):
                np.maximum.at(met, graph.meet[feeders], arrival[feeders])
        nodes = ending[end_at[level] : end_at[level + 1]]
        start = arrival[nodes]
        there = waits[nodes]
        if there.any():
            start[there] = np.maximum(start[there], met[graph.meet[nodes[there]]])
        end[nodes] = start + durations[nodes]
    return arrival, end[:-1]


def _by_level(level: Ints) -> tuple[Ints, list[int]]:
    """Return the nodes by level, and where each level begins."""
    ends = np.cumsum(np.bincount(level)).tolist()
    return np.argsort(level, kind="stable"), [0, *ends]


def _within(counts: Ints) -> Ints:
    """Return 0, 1, ... for each stretch of that length, one after the other."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
