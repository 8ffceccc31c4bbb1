"""All events of a level at once: the same sums and maxima as the loop in `engine`, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.event_graph import EventGraph, Role
from shardtoll.analyzers.replay.events.event_order import Order

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def by_levels(graph: EventGraph, durations: Floats, order: Order, delay: Floats) -> tuple[Floats, Floats]:
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
