"""How messages between hosts hold up the nodes of a graph: see `handed_over` for which they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.context.handed_over import Messages

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Nodes(Struct, frozen=True):
    """Columns of a graph's nodes, rank by rank, those of a lane in its order."""

    rank: Ints
    lane: Ints
    thread: Ints
    """-1 on a device."""
    start: Floats
    end: Floats
    asked: Floats
    """When device work was launched; infinity if unknown, as for the waits of a stream."""


class Edges(Struct, frozen=True):
    """Edges to add, and how much of the gap before each node was waiting for a message."""

    before: Ints
    after: Ints
    lag: Floats
    waited: Floats
    """[n]"""


def edges_of(nodes: Nodes, made: Messages) -> Edges:
    """Return the edges of messages. The receiver's host goes on when the sender's device, or its host, was
    there and the data had come.

    If a receiver called so late that the data was there, its message took no longer than is usual between
    these two ranks.
    """
    waited = np.zeros(len(nodes.rank))
    target = _next_on_host(nodes, made)
    edges: list[tuple[int, int, int, float]] = []
    """Message, node before, node after, and how long after that one's end the data was sent."""
    there = np.full(len(made.sent), -np.inf)
    before = {int(rank): _Before(nodes, int(rank)) for rank in np.unique(made.source)}
    for number in np.flatnonzero(target >= 0).tolist():
        sent = float(made.sent[number])
        there[number] = sent
        for node, is_host in before[int(made.source[number])].at(sent):
            end = float(nodes.end[node])
            # Later ends did not hold the receiver up. Edges only lead on in time, so never in a circle: one
            # at a single instant needs nodes without length only.
            begin = nodes.start[target[number]]
            if end > begin or (end >= begin and end <= nodes.start[node]):
                continue
            edges.append((number, node, int(target[number]), sent - end if is_host else 0.0))
            there[number] = max(there[number], end)
    took = _took(made, there)
    # All of a receiver's call is waiting: the host's own work in it takes microseconds.
    has_node = target >= 0
    np.add.at(waited, target[has_node], (made.got - made.called)[has_node])
    chosen = np.array([each[:3] for each in edges], dtype=np.int64).reshape(-1, 3)
    after_send = np.array([each[3] for each in edges], dtype=np.float64)
    # Between having the message and the node the host may have waited for other messages.
    later = nodes.start[target] - made.got - _other_waits(made, target)
    lag = after_send + took[chosen[:, 0]] + later[chosen[:, 0]]
    return Edges(chosen[:, 1], chosen[:, 2], lag, waited)


def _took(made: Messages, there: Floats) -> Floats:
    """Return how long each message took once the sender was there."""
    took = made.got - there
    waiting = there >= made.called
    _, pair = np.unique(np.stack([made.source, made.target]), axis=1, return_inverse=True)
    pair = np.asarray(pair).reshape(-1)
    order = np.argsort(pair, kind="stable")
    limit = np.zeros(len(took))
    for rows in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1) if len(order) else ():
        waited = rows[waiting[rows]]
        limit[rows] = np.median(took[waited if len(waited) else rows])
    return np.where(waiting, took, np.minimum(took, limit))


def _other_waits(made: Messages, target: Ints) -> Floats:
    """Return how long a receiver waited for other messages after each one, before it went on to its node."""
    waits = made.got - made.called
    order = np.lexsort((made.got, target))
    total = np.cumsum(waits[order])
    last = np.searchsorted(target[order], target[order], "right") - 1
    others = np.zeros(len(target))
    others[order] = total[last] - total
    return others


def _next_on_host(nodes: Nodes, made: Messages) -> Ints:
    """Return the first node of the receiver's thread after each message; -1 for none."""
    target = np.full(len(made.got), -1, dtype=np.int64)
    keys = np.stack([made.target, made.thread])
    for rank, thread in np.unique(keys, axis=1).T.tolist():
        rows = np.flatnonzero((nodes.rank == rank) & (nodes.thread == thread))
        mine = np.flatnonzero((made.target == rank) & (made.thread == thread))
        place = np.searchsorted(nodes.start[rows], made.got[mine])
        inside = place < len(rows)
        target[mine[inside]] = rows[place[inside]]
    return target


class _Before:
    """The nodes of one rank, to find those after which it can send."""

    def __init__(self, nodes: Nodes, rank: int) -> None:
        self._lanes: list[tuple[Ints, Floats, bool]] = []
        mine = np.flatnonzero(nodes.rank == rank)
        for lane in np.unique(nodes.lane[mine]):
            rows = mine[nodes.lane[mine] == lane]
            is_host = bool(nodes.thread[rows[0]] >= 0)
            asked = nodes.end[rows] if is_host else nodes.asked[rows]
            # Waits of a stream have no launch on record: they come with the work after them.
            asked = np.minimum.accumulate(asked[::-1])[::-1]
            self._lanes.append((rows, asked, is_host))

    def at(self, instant: float) -> list[tuple[int, bool]]:
        """Return the last node of each lane that was there, and whether it is on the host."""
        last_nodes = []
        for rows, asked, is_host in self._lanes:
            place = int(np.searchsorted(asked, instant, "right")) - 1
            if place >= 0:
                last_nodes.append((int(rows[place]), is_host))
        return last_nodes
