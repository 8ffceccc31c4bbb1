"""When ranks begin a step made from points: one that waits between its steps begins later than its peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.recorded.recorded import Recorded

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def begin_earlier(recorded: Recorded, release_ns: Floats, by_ns: Mapping[tuple[int, int], float]) -> None:
    """Let (step, rank) begin earlier by what `by_ns` says, but not before the first rank of the step."""
    for node in _first(recorded).tolist():
        place = int(recorded.step[node]), recorded.ranks[int(recorded.graph.rank[node])]
        release_ns[node] = max(0.0, release_ns[node] - by_ns.get(place, 0.0))


def begin_as_peers(
    recorded: Recorded, release_ns: Floats, ranks: Collection[int], peers_of: Mapping[int, tuple[int, ...]]
) -> None:
    """Let these ranks begin each step no later than the median of their peers does on record."""
    first = _first(recorded)
    began = {
        (int(recorded.step[node]), recorded.ranks[int(recorded.graph.rank[node])]): float(
            recorded.graph.release_ns[node]
        )
        for node in first.tolist()
    }
    for node in first.tolist():
        step, rank = int(recorded.step[node]), recorded.ranks[int(recorded.graph.rank[node])]
        if rank in ranks:
            peers = sorted(began.get((step, peer), 0.0) for peer in peers_of.get(rank, ()) if peer != rank)
            if peers:
                release_ns[node] = min(release_ns[node], peers[(len(peers) - 1) // 2])


def _first(recorded: Recorded) -> Ints:
    """Return the nodes with which a rank begins a step later than the first rank does."""
    return np.flatnonzero((recorded.graph.release_ns > 0) & (recorded.step >= 0))
