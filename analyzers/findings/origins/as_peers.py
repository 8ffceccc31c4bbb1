"""A rank as fast as its peers, or as in its other steps: its own times in a step's graph, point by point."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.findings.origins.over_steps import Usual
from shardtoll.analyzers.replay.points.point_graph import Graph

Ints = npt.NDArray[np.int64]


def middle(values: Ints) -> Ints:
    """Return the median over the first axis; of two values the lesser, as one of two may be the slow one."""
    of: Ints = np.quantile(values, 0.5, axis=0, method="lower").astype(np.int64)
    return of


class Own:
    """The own times of one step's ranks, busy and idle, and what their peers have in their place.

    A rank without peers is held to what it takes in its other steps, if `usual` tells it.
    """

    def __init__(
        self,
        graph: Graph,
        peers: Mapping[int, tuple[int, ...]],
        usual: Mapping[int, Usual] | None = None,
    ) -> None:
        self.graph = graph
        self.usual = {} if usual is None else usual
        self.points = {rank: graph.of_rank(place) for place, rank in enumerate(graph.ranks)}
        self.peers = {
            rank: tuple(other for other in others if other in self.points)
            for rank, others in peers.items()
            if rank in self.points
        }
        self._busy = graph.own_ns - graph.idle_ns
        # Asked for in every replay.
        self._as_peers: dict[int, Ints] = {}
        self._common_idle: dict[int, Ints] = {}

    @property
    def compared(self) -> list[int]:
        """The ranks that are held to peers or to their other steps."""
        return [rank for rank in self.points if self.peers.get(rank) or rank in self.usual]

    def excess_ns(self, rank: int) -> int:
        """Return what the rank has more of its own time than its peers' median; negative: less."""
        points = self.points[rank]
        return int(self.graph.own_ns[points].sum() - self.as_peers(rank).sum())

    def as_peers(self, rank: int) -> Ints:
        """Return the rank's own times by point if it were as its peers' median, or as usual.

        As they are if neither is known.
        """
        if rank not in self._as_peers:
            self._as_peers[rank] = self._held_to(rank)
        return self._as_peers[rank]

    def _held_to(self, rank: int) -> Ints:
        points = self.points[rank]
        others = self.peers.get(rank, ())
        if not others:
            usual = self.usual.get(rank)
            if usual is None:
                return self.graph.own_ns[points]
            usual_ns: Ints = usual.busy_ns + np.minimum(usual.idle_ns, self.graph.idle_ns[points])
            return usual_ns
        busy = self._of_peers(self._busy, points, others)
        idle = self._of_peers(self.graph.idle_ns, points, others)
        mine: Ints = busy + np.minimum(idle, self.graph.idle_ns[points])
        return mine

    def _of_peers(self, values: Ints, points: Ints, others: Collection[int]) -> Ints:
        if all(len(self.points[other]) == len(points) for other in others):
            return middle(np.array([values[self.points[other]] for other in others]))
        # Points that do not correspond: the rank's own, scaled to its peers' sum.
        mine = values[points]
        wanted = int(middle(np.array([[values[self.points[other]].sum()] for other in others]))[0])
        scaled: Ints = np.rint(mine * (wanted / max(1, int(mine.sum())))).astype(np.int64)
        return scaled

    def common_idle_ns(self, rank: int) -> Ints:
        """Return, by point, the rank's idle time that most of its peers have too, but not all of them.

        Such time does not belong to one rank: they wait for something that is not on record.
        """
        if rank not in self._common_idle:
            self._common_idle[rank] = self._shared_idle(rank)
        return self._common_idle[rank]

    def _shared_idle(self, rank: int) -> Ints:
        points, others = self.points[rank], self.peers.get(rank, ())
        if not others or any(len(self.points[other]) != len(points) for other in others):
            return np.zeros(len(points), dtype=np.int64)
        of_all = np.array([self.graph.idle_ns[self.points[each]] for each in (rank, *others)])
        shared: Ints = np.minimum(of_all[0], middle(of_all)) - of_all.min(axis=0)
        return shared

    def with_fixed(self, fixed: Collection[int]) -> Ints:
        """Return the own times by point if these ranks were as their peers' median.

        Idle time that ranks share without a reason on record shrinks with it, by no more than they gain.
        """
        own: Ints = self.graph.own_ns.copy()
        gained = 0
        for rank in fixed:
            own[self.points[rank]] = self.as_peers(rank)
            gained = max(gained, self.excess_ns(rank))
        for rank, points in self.points.items():
            if gained > 0:
                common = self.common_idle_ns(rank)
                part = min(1.0, gained / max(1, int(common.sum())))
                own[points] -= np.minimum((common * part).astype(np.int64), own[points])
        return own
