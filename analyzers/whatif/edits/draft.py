"""A copy of recorded steps that edits write to: what each edit does to nodes, gaps and meetings."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.whatif.edits.begins import begin_as_peers
from shardtoll.analyzers.whatif.edits.held_to_peers import stays
from shardtoll.analyzers.whatif.edits.shares_gone import SharesGone
from shardtoll.ledger.records.record import PHASES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_ON_HOST = (Kind.HOST, Kind.SYNC, Kind.DATA)


class Draft:
    """Edits change times only, so that the order of events stays that of the record."""

    def __init__(self, recorded: Recorded) -> None:
        graph = recorded.graph
        self.recorded = recorded
        self.duration = self._plain_ns
        """Without what the recording itself took: the step is that of a run without it."""
        self.gap = graph.gap_ns.copy()
        self.lag = graph.lag_ns.copy()
        self.release = graph.release_ns.copy()
        """When ranks begin their steps, in steps made from points."""
        self._gone = SharesGone(len(graph))
        self._held: dict[int, tuple[int, ...]] = {}
        """Late rank -> the peers that it is made as fast as."""
        self.alone: Bools = np.zeros(len(graph), dtype=np.bool_)
        """Nodes that no longer meet others: they wait at no rendezvous, and no one waits for them."""
        self.joined: dict[int, tuple[int, ...]] = {}
        """Index of a collective in its frame -> those removed ones whose data it carries too."""
        self.step_factor = 1.0
        """Times the length of every step, by changes that have no node: a closed form of a schedule. It
        scales the edited step, since a pipeline's bubble shrinks with the work."""

    def outcome(self) -> Outcome:
        """Return the edited steps, simulated; another draft of equal edits may have the same object."""
        edited = (self.duration, self.gap, self.lag, self.release, self.alone)
        return self.recorded.simulated.outcome(edited, self._simulate)

    def _simulate(self) -> Outcome:
        graph = self.recorded.graph
        # The outcome holds the durations, and this draft may be edited further.
        edited: EventGraph = graph.edited(
            duration_ns=self.duration.copy(),
            gap_ns=self.gap,
            lag_ns=self.lag,
            release_ns=self.release,
            meet=np.where(self.alone, -1, graph.meet),
        )
        return simulate(edited, order=self.recorded.order)

    def lasts_ns(self, outcome: Outcome | None = None) -> float:
        """Return the edited step's time on the slowest rank, mean over the steps, in the record's time: see
        `Replayer.anchor`."""
        return self.recorded.lasts_ns(self.outcome() if outcome is None else outcome) * self.step_factor

    def nodes_of(self, rows: Ints) -> Ints:
        """Return the nodes that are one of these collectives, by index in their frame.

        If none of them is of a replayed step: the nodes of the same calls.
        """
        recorded = self.recorded
        collective = recorded.of_kinds((Kind.COLLECTIVE,)) & (recorded.row >= 0)
        is_one = np.isin(recorded.row, rows) & collective
        if recorded.call is not None and not is_one.any():
            calls = np.unique(recorded.call[rows])
            is_one[collective] = np.isin(recorded.call[recorded.row[collective]], calls)
        return np.flatnonzero(is_one)

    def remove(self, nodes: Ints) -> None:
        """Take these nodes out: they last no time, and nobody meets there."""
        self.duration[nodes] = 0.0
        self.alone[nodes] = True

    def scale(self, nodes: Ints | Bools, factor: float | Floats) -> None:
        """Let these nodes last so many times as long."""
        self.duration[nodes] *= factor

    def let_go(self, nodes: Ints) -> None:
        """Let nobody of the step wait for the end of these nodes, but for the end of the step itself."""
        graph = self.recorded.graph
        is_one = np.zeros(len(graph), dtype=np.bool_)
        is_one[nodes] = True
        lane = graph.lane
        waits = is_one[graph.edge_from]
        # The step's last node of the rank keeps waiting: the data is needed some time.
        keeps = self._last_of_steps()[graph.edge_to] == graph.edge_to
        same_lane = lane[graph.edge_from] == lane[graph.edge_to]
        self.lag[waits & ~keeps & ~same_lane] = -np.inf

    def _last_of_steps(self) -> Ints:
        """Return for each node the last one of its rank and step."""
        key, size = self.recorded.rank_steps()
        last = np.full(size, -1, dtype=np.int64)
        ends = np.argsort(self.recorded.end_ns, kind="stable")
        last[key[ends]] = ends
        return last[key]

    def no_waits(self, nodes: Ints) -> None:
        """Let these nodes of the host wait for no device, and take no time."""
        is_one = np.zeros(len(self.duration), dtype=np.bool_)
        is_one[nodes] = True
        self.lag[is_one[self.recorded.graph.edge_to]] = -np.inf
        self.duration[nodes] = 0.0

    def no_phase(self, phase: int) -> None:
        """Take out the compute of a phase, and the host's time to launch it."""
        there = self.recorded.phase == phase
        self.duration[there & self.recorded.of_kinds((Kind.COMPUTE, Kind.HOST))] = 0.0
        on_host = there & self.recorded.of_kinds((Kind.HOST,))
        self.gap[on_host] = np.minimum(self.gap[on_host], 0.0)

    def take_out(
        self, work: str, share: Floats, part: Hashable = None, as_peers: Floats | None = None
    ) -> None:
        """Take a share of each node's recorded time out as this work, once; see `SharesGone.book`."""
        self.duration *= self._gone.book(work, share, part, as_peers)

    def shorten(
        self,
        kinds: Iterable[Kind],
        by_ns: Mapping[int, float],
        phase: int | None,
        work: str,
        part: Hashable = None,
    ) -> None:
        """Take as much recorded time per step off the nodes of these kinds as a rank has in `by_ns`, in equal
        shares.

        `work` names it, so that another edit that takes out the same finds it gone. `part` says that it is
        one of several parts of it.
        """
        recorded = self.recorded
        whole_ns = np.array([by_ns.get(rank, 0.0) for rank in recorded.ranks]) * len(recorded.steps)
        here = self._chosen(kinds, phase)
        share, _ = _spread(self._plain_ns, here, recorded.graph.rank, whole_ns)
        self.take_out(work, share, part)

    def shorten_each(
        self, kinds: Iterable[Kind], by_ns: Mapping[tuple[int, int], float], phase: int | None, work: str
    ) -> None:
        """Take as much off the nodes of these kinds as (step, rank) has in `by_ns`, in equal shares there.

        Time that they did not hold on record goes from the rank's other own time. How a step divides into
        kinds may be known of other steps only, and this was measured in the step itself. A late rank that has
        become as its peers has as much to lose as they have.
        """
        recorded, plain_ns = self.recorded, self._plain_ns
        chosen = self._chosen(kinds, phase)
        others = ~chosen & (recorded.point >= 0)
        place, size = recorded.rank_steps()
        steps = np.unique(recorded.step).tolist()
        whole_ns, of_peers_ns = np.zeros(size), np.zeros(size)
        for (step, rank), gone_ns in by_ns.items():
            if rank in recorded.ranks and step in recorded.steps:
                one = recorded.ranks.index(rank) * len(steps) + steps.index(step)
                theirs = sorted(by_ns.get((step, peer), 0.0) for peer in self._held.get(rank, (rank,)))
                whole_ns[one], of_peers_ns[one] = gone_ns, min(gone_ns, theirs[(len(theirs) - 1) // 2])
        made = []
        for ns in (whole_ns, of_peers_ns):
            share, rest_ns = _spread(plain_ns, chosen, place, ns)
            made.append(share + _spread(plain_ns, others, place, rest_ns)[0])
        share, as_peers = made
        self.take_out(work, share, as_peers=as_peers)

    def _chosen(self, kinds: Iterable[Kind], phase: int | None) -> Bools:
        """Return the nodes of these kinds inside steps; those of the phase if any is."""
        chosen = self.recorded.of_kinds(kinds) & (self.recorded.step >= 0)
        if phase is None:
            return chosen
        of_phase = chosen & (self.recorded.phase == phase)
        return of_phase if of_phase.any() else chosen

    def ranks_as(self, ranks: Collection[int], peers_of: Mapping[int, tuple[int, ...]]) -> None:
        """Give these ranks their peers' median times, where they are shorter.

        In steps made from points this is done kind by kind: see `held_to_peers`.
        """
        recorded = self.recorded
        if recorded.source == "points":
            plain_ns = self._plain_ns
            places = [recorded.ranks.index(rank) for rank in ranks if rank in recorded.ranks]
            begin_as_peers(recorded, self.release, ranks, peers_of)
            share = stays(recorded, plain_ns, ranks, peers_of)
            self._hold(plain_ns, self.duration, np.ones(len(share), dtype=np.bool_), share)
            self._gone.book_late(1 - share, np.isin(recorded.graph.rank, places))
            seen = {rank: tuple(p for p in peers_of.get(rank, ()) if p in recorded.ranks) for rank in ranks}
            self._held |= {rank: peers for rank, peers in seen.items() if peers}
            return
        for rank in ranks:
            peers = tuple(peer for peer in peers_of.get(rank, ()) if peer not in ranks)
            self._rank_as(rank, peers or peers_of.get(rank, ()))

    @property
    def _plain_ns(self) -> Floats:
        """Return how long each node lasts without any edit."""
        graph = self.recorded.graph
        return np.where(graph.kind == Kind.CAPTURE, 0.0, graph.duration_ns)

    def _hold(self, plain: Floats, values: Floats, here: Bools, factor: Floats) -> None:
        """Let these nodes last so many times what they did on record, or less if an edit before has it so."""
        was = plain[here]
        values[here] = np.where(was > 0, np.minimum(values[here], was * factor), values[here])

    def _rank_as(self, rank: int, peers: tuple[int, ...]) -> None:
        """Hold a rank to its peers by phase of the step and kind of node. If all issue as many collectives,
        the time between two collectives replaces the phase."""
        recorded, graph = self.recorded, self.recorded.graph
        others = [recorded.ranks.index(peer) for peer in peers if peer in recorded.ranks]
        if rank not in recorded.ranks or not others:
            return
        mine = recorded.ranks.index(rank)
        part = self._parts_of([mine, *others])
        own = (graph.kind != Kind.COLLECTIVE) & (recorded.step >= 0)
        key = part * 16 + graph.kind
        size = (int(part.max(initial=0)) + 1) * 16
        for is_gap, values, on_record in (
            (False, self.duration, self._plain_ns),
            (True, self.gap, graph.gap_ns),
        ):
            counts = own & np.isin(graph.kind, _ON_HOST) if is_gap else own
            sums = [
                np.bincount(key[here], np.maximum(on_record[here], 0.0), minlength=size)
                for here in (counts & (graph.rank == place) for place in (mine, *others))
            ]
            wanted = np.quantile(np.array(sums[1:]), 0.5, axis=0, method="lower")
            was = sums[0]
            factor = np.where(was > wanted, wanted / np.where(was > 0, was, 1.0), 1.0)
            here = counts & (graph.rank == mine)
            self._hold(on_record, values, here, factor[key[here]])
            if not is_gap:
                share = np.zeros(len(graph))
                share[here] = 1 - factor[key[here]]
                self._gone.book_late(share, here)

    def _parts_of(self, places: list[int]) -> Ints:
        """Return for each node the number of its part of the step, which is the same on all these ranks."""
        recorded, graph = self.recorded, self.recorded.graph
        steps, step = np.unique(recorded.step, return_inverse=True)
        issued = np.zeros(len(graph), dtype=np.int64)
        counts = []
        for place in places:
            nodes = np.flatnonzero(graph.rank == place)
            asked = recorded.asked_ns[nodes]
            number = step[nodes]
            order = np.lexsort((graph.kind[nodes] != Kind.COLLECTIVE, asked, number))
            is_one = (graph.kind[nodes] == Kind.COLLECTIVE)[order]
            begun = np.cumsum(is_one)
            first = np.searchsorted(number[order], np.arange(len(steps)))
            before = np.where(first > 0, begun[np.maximum(first - 1, 0)], 0)
            issued[nodes[order]] = begun - before[number[order]]
            counts.append(np.bincount(number[order], is_one, minlength=len(steps)).astype(int).tolist())
        if not all(count == counts[0] for count in counts):
            issued[:] = 0
        # Hosts that hand messages over issue no collective between a forward and a backward.
        return (step * (int(issued.max(initial=0)) + 1) + issued) * len(PHASES) + recorded.phase


def _spread(recorded_ns: Floats, here: Bools, key: Ints, by_ns: Floats) -> tuple[Floats, Floats]:
    """Return the equal share that these nodes of each key lose if they lose so much, by node. Also return by
    key the time that they do not hold."""
    total = np.bincount(key[here], recorded_ns[here], len(by_ns))
    share = np.minimum(1.0, by_ns / np.where(total > 0, total, np.inf))
    return np.where(here, share[key], 0.0), np.maximum(0.0, by_ns - total)
