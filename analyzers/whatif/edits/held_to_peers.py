"""A rank of a live run as fast as its peers: which kinds of its own time become shorter.

Only what a late rank has more of goes. If it computes longer and reads batches as the others do, its batches
take as long afterwards. So another fix may still take them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.findings.origins.as_peers import Own, middle
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind

Floats = npt.NDArray[np.float64]


def stays(
    recorded: Recorded, duration_ns: Floats, ranks: Collection[int], peers_of: Mapping[int, tuple[int, ...]]
) -> Floats:
    """Return which share of its time each node keeps if these ranks are as their peers' median; 1 elsewhere.

    `duration_ns` by node, as recorded. Idle time that others share without a reason on record shrinks too:
    they wait there for something that is not on record.
    """
    is_own = recorded.point >= 0
    kinds, kind = np.unique(recorded.graph.kind[is_own], return_inverse=True)
    key = recorded.point[is_own] * len(kinds) + kind
    count = sum(len(graph.own_ns) for graph in recorded.graphs)
    sums = np.bincount(key, duration_ns[is_own], count * len(kinds)).astype(np.float64)
    has = sums.reshape(count, len(kinds))
    kept, first = [], 0
    for graph in recorded.graphs:
        own = Own(graph, peers_of)
        fixed = [rank for rank in ranks if rank in own.points]
        here = has[first : first + len(graph.own_ns)]
        # Idle time that is shared is the host's, until a rank is held to its peers.
        more = np.where(kinds == Kind.HOST, here, 0.0)
        for rank in fixed:
            more[own.points[rank]] = _beyond_peers(own, rank, here)
        share = np.minimum(1.0, own.with_fixed(fixed) / np.maximum(graph.own_ns, 1))
        kept.append(_left(here, more, here.sum(axis=1) * (1 - share)))
        first += len(graph.own_ns)
    made = np.ones(len(recorded.graph))
    made[is_own] = np.concatenate(kept).ravel()[key]
    return made


def _beyond_peers(own: Own, rank: int, has: Floats) -> Floats:
    """Return what the rank has more of than its peers, by its points and kinds; 0 if less."""
    points, others = own.points[rank], own.peers.get(rank, ())
    mine = has[points]
    if not others:
        return np.zeros_like(mine)
    if all(len(own.points[other]) == len(points) for other in others):
        wanted = middle(np.array([has[own.points[other]] for other in others]))
    else:
        # Points that do not correspond: each kind as a whole.
        sums = middle(np.array([has[own.points[other]].sum(axis=0) for other in others]))
        wanted = mine * (sums / np.maximum(mine.sum(axis=0), 1.0))
    return np.maximum(mine - wanted, 0.0)


def _left(has: Floats, more: Floats, gone: Floats) -> Floats:
    """Return which share of each kind is left, by point; `gone` goes from `more` first, then from all."""
    room = more.sum(axis=1)
    taken = more * np.minimum(1.0, gone / np.where(room > 0, room, np.inf))[:, None]
    rest, left = np.maximum(0.0, gone - room), has - taken
    whole = left.sum(axis=1)
    taken = taken + left * (rest / np.where(whole > 0, whole, np.inf))[:, None]
    made: Floats = np.clip(1 - taken / np.where(has > 0, has, np.inf), 0.0, 1.0)
    return made
