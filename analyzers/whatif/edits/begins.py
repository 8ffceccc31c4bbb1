"""When ranks begin a step made from points: one that waits between its steps begins later than its peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.recorded.recorded import Recorded

Floats = npt.NDArray[np.float64]


def begin_earlier(recorded: Recorded, release_ns: Floats, by_ns: Mapping[tuple[int, int], float]) -> None:
    """Let (step, rank) begin earlier by what `by_ns` says, but not before the first rank of the step."""
    for place, node in _late(recorded).items():
        release_ns[node] = max(0.0, release_ns[node] - by_ns.get(place, 0.0))


def begin_as_peers(
    recorded: Recorded, release_ns: Floats, ranks: Collection[int], peers_of: Mapping[int, tuple[int, ...]]
) -> None:
    """Let these ranks begin each step no later than the median of their peers does on record."""
    late = _late(recorded)
    began_ns = {place: float(recorded.graph.release_ns[node]) for place, node in late.items()}
    for (step, rank), node in late.items():
        others = [peer for peer in peers_of.get(rank, ()) if peer != rank] if rank in ranks else []
        if others:
            of_peers = sorted(began_ns.get((step, peer), 0.0) for peer in others)
            release_ns[node] = min(release_ns[node], of_peers[(len(of_peers) - 1) // 2])


def _late(recorded: Recorded) -> dict[tuple[int, int], int]:
    """Return (step, rank) -> the node with which it begins, of ranks that begin later than the first one."""
    nodes = np.flatnonzero((recorded.graph.release_ns > 0) & (recorded.step >= 0))
    ranks = recorded.graph.rank[nodes]
    return {
        (int(step), recorded.ranks[int(rank)]): int(node)
        for step, rank, node in zip(recorded.step[nodes], ranks, nodes, strict=True)
    }
