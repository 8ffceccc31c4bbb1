"""A copy of recorded steps that edits write to: what each edit does to nodes, gaps and meetings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.engine import simulate
from shardtoll.analyzers.replay.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.outcome import Outcome
from shardtoll.analyzers.whatif.as_peers import stays
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
        self.duration = np.where(graph.kind == Kind.CAPTURE, 0.0, graph.duration_ns)
        """Without what the recording itself took: the step is that of a run without it."""
        self.gap = graph.gap_ns.copy()
        self.lag = graph.lag_ns.copy()
        self.host_gone: Floats = np.zeros(len(graph))
        """Share of each node's time that edits have taken out as the host's work for calls that are gone."""
        self.alone: Bools = np.zeros(len(graph), dtype=np.bool_)
        """Nodes that wait at no rendezvous any more, and for whom nobody waits there."""
        self.joined: dict[int, tuple[int, ...]] = {}
        """Index of a collective in its frame -> those removed ones whose data it carries too."""
        self.step_factor = 1.0
        """Times the length of every step, by changes that have no node: a closed form of a schedule. It
        scales the edited step, since a pipeline's bubble shrinks with the work."""

    def outcome(self) -> Outcome:
        """Return the edited steps, simulated; another draft of equal edits may have the same object."""
        edited = (self.duration, self.gap, self.lag, self.alone)
        return self.recorded.simulated.outcome(edited, self._simulate)

    def _simulate(self) -> Outcome:
        graph = self.recorded.graph
        # The outcome holds the durations, and this draft may be edited further.
        edited: EventGraph = graph.edited(
            duration_ns=self.duration.copy(),
            gap_ns=self.gap,
            lag_ns=self.lag,
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

    def shorten(self, kinds: Iterable[Kind], by_ns: float, ranks: Iterable[int], phase: int | None) -> None:
        """Take so much per step off the nodes of these kinds on each of these ranks, in equal shares."""
        recorded = self.recorded
        chosen = recorded.of_kinds(kinds) & (recorded.step >= 0)
        if phase is not None and (chosen & (recorded.phase == phase)).any():
            chosen &= recorded.phase == phase
        for rank in ranks:
            if rank not in recorded.ranks:
                continue
            here = chosen & (recorded.graph.rank == recorded.ranks.index(rank))
            total = float(self.duration[here].sum())
            if total > 0:
                self.duration[here] *= max(0.0, 1 - by_ns * len(recorded.steps) / total)

    def shorten_each(
        self, kinds: Iterable[Kind], by_ns: Mapping[tuple[int, int], float], phase: int | None
    ) -> None:
        """Take as much off the nodes of these kinds as (step, rank) has in `by_ns`, in equal shares there.

        What they do not hold goes from the rank's other own time. How a step divides into kinds may be known
        of other steps only, and this was measured in the step itself.
        """
        recorded = self.recorded
        chosen = recorded.of_kinds(kinds)
        if phase is not None and (chosen & (recorded.phase == phase)).any():
            chosen &= recorded.phase == phase
        for (step, rank), gone_ns in by_ns.items():
            if rank not in recorded.ranks:
                continue
            here = (recorded.step == step) & (recorded.graph.rank == recorded.ranks.index(rank))
            left_ns = gone_ns
            for nodes in (here & chosen, here & ~chosen & (recorded.point >= 0)):
                total = float(self.duration[nodes].sum())
                self.duration[nodes] *= max(0.0, 1 - left_ns / total) if total > 0 else 1.0
                left_ns = max(0.0, left_ns - total)

    def ranks_as(self, ranks: Collection[int], peers_of: Mapping[int, tuple[int, ...]]) -> None:
        """Give these ranks their peers' median times, where they are shorter.

        Of steps made from points, kind by kind: see `as_peers`.
        """
        plain = self._plain
        if self.recorded.source == "points":
            share = stays(self.recorded, plain.duration, ranks, peers_of)
            everywhere = np.ones(len(share), dtype=np.bool_)
            self._hold(plain.duration, self.duration, everywhere, share)
            return
        for rank in ranks:
            peers = tuple(peer for peer in peers_of.get(rank, ()) if peer not in ranks)
            self._rank_as(rank, peers or peers_of.get(rank, ()))

    @property
    def _plain(self) -> Draft:
        """Return the steps without any edit."""
        return Draft(self.recorded)

    def _hold(self, plain: Floats, values: Floats, here: Bools, factor: Floats) -> None:
        """Let these nodes last so many times what they did on record, or less if an edit before has it so."""
        was = plain[here]
        values[here] = np.where(was > 0, np.minimum(values[here], was * factor), values[here])

    def _rank_as(self, rank: int, peers: tuple[int, ...]) -> None:
        """Hold a rank to its peers by phase of the step and kind of node; between one collective and the next
        if all issue as many."""
        recorded, graph = self.recorded, self.recorded.graph
        others = [recorded.ranks.index(peer) for peer in peers if peer in recorded.ranks]
        if rank not in recorded.ranks or not others:
            return
        mine = recorded.ranks.index(rank)
        part = self._parts_of([mine, *others])
        own = (graph.kind != Kind.COLLECTIVE) & (recorded.step >= 0)
        key = part * 16 + graph.kind
        size = (int(part.max(initial=0)) + 1) * 16
        plain = self._plain
        for is_gap, values, on_record in (
            (False, self.duration, plain.duration),
            (True, self.gap, plain.gap),
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

    def _parts_of(self, places: list[int]) -> Ints:
        """Return for each node a number of the part of the step that it is in, alike on all these ranks."""
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
