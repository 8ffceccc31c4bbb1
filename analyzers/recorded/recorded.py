"""Recorded steps as an event graph, with what each node stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.events.event_order import Order
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.replay.points.point_graph import Graph

Ints = npt.NDArray[np.int64]

Floats = npt.NDArray[np.float64]

Bytes = npt.NDArray[np.uint8]

Source = Literal["events", "points"]

NO_STEP: Final = -1

AS_LONG: Final = 1e-3
"""Ranks whose steps differ by this share or less last as long as each other."""

MOST_KEPT: Final = 4
"""An edit at its band's middle and ends, and the bill so far. An outcome takes 48 bytes a node."""


class Simulated:
    """Outcomes of one record. Nobody may change their arrays."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Outcome] = {}
        """In order of use."""

    def outcome(self, edited: tuple[npt.NDArray[Any], ...], simulate: Callable[[], Outcome]) -> Outcome:
        """Return the outcome under these edited arrays; `simulate` makes it if it is unknown."""
        digest = blake2b(digest_size=16)
        for array in edited:
            digest.update(array.data)
        key = digest.digest()
        outcome = self._kept.pop(key) if key in self._kept else simulate()
        self._kept[key] = outcome
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return outcome


@dataclass(frozen=True, slots=True)
class Recorded:
    """Consecutive steps of all seen ranks, or steps side by side that each begin anew."""

    graph: EventGraph
    """Its ranks are places in `ranks`."""
    order: Order
    source: Source
    """`events`: launches, streams and waits of traces. `points`: collectives and the rank's own time between
    them, of live runs, and of traces without usable launches."""
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    step: Ints
    """[n] Number of its step, `NO_STEP` outside every step."""
    row: Ints
    """[n] Index in the collectives' frame; -1 for none."""
    phase: Bytes
    """[n] Place in `record.PHASES`."""
    name: Ints
    """[n] Place in `names`."""
    names: tuple[str, ...]
    module: Ints
    """[n] Place in `names`; 0, the empty text, if unknown."""
    unknown_ns: Floats
    """[n] The part of its gap or lag that no record explains."""
    asked_ns: Floats
    """[n] When the rank's own thread came to it: of device work, its launch."""
    graphs: tuple[Graph, ...]
    """For `points`: the graph that each step was made from; else empty."""
    point: Ints
    """[n] Of own time in `points`: its place among the points of all `graphs`; else -1."""
    start_ns: Floats
    """[n] As recorded, on one clock, from the graph's zero."""
    end_ns: Floats
    call: Ints | None = None
    """For `points`: number of the call that a collective is, by its index in the frame. Equal in steps that
    make the same calls. So facts about one step's rows apply to the matching nodes of another."""
    first_ns: Floats | None = None
    """[ranks] Time at which each rank's first step begins; None if every step begins anew."""
    simulated: Simulated = field(default_factory=Simulated, init=False, repr=False, compare=False)
    """Outcomes of drafts of these steps."""

    def replay(self, graph: EventGraph | None = None) -> Outcome:
        """Return the outcome of the steps, or of an edited graph with the same lanes, edges and meetings."""
        return simulate(self.graph if graph is None else graph, order=self.order)

    def recorded(self) -> Outcome:
        """Return what was recorded in the place of an outcome."""
        none = np.full(len(self.graph), -1, dtype=np.int64)
        return Outcome(self.start_ns, self.start_ns, self.end_ns, self.end_ns - self.start_ns, none, none)

    def step_times(self, outcome: Outcome) -> dict[tuple[int, int], float]:
        """Return (step, rank) -> how long the step lasted on the rank: from the end of the step before.

        A step that begins anew lasts from its own first instant. The first of steps that follow each other
        lasts from `first_ns` on each rank. The host runs ahead of the device, and its lead is excluded from
        the step.
        """
        times: dict[tuple[int, int], float] = {}
        ends = self._ends(outcome)
        for place, rank in enumerate(self.ranks):
            before = None if self.first_ns is None else float(self.first_ns[place])
            for step in self.steps:
                if (place, step) not in ends:
                    continue
                first, last = ends[place, step]
                times[step, rank] = max(0.0, last - (first if before is None else before))
                before = None if self.first_ns is None else last
        return times

    def _ends(self, outcome: Outcome) -> dict[tuple[int, int], tuple[float, float]]:
        """Return (place of the rank, step) -> first start and last end."""
        inside = self.step != NO_STEP
        numbers, place = np.unique(self.step[inside], return_inverse=True)
        if not len(numbers):
            return {}
        key = self.graph.rank[inside] * len(numbers) + place
        first = np.full(len(self.ranks) * len(numbers), np.inf)
        last = np.full(len(first), -np.inf)
        np.minimum.at(first, key, outcome.start_ns[inside])
        np.maximum.at(last, key, outcome.end_ns[inside])
        return {
            (number // len(numbers), int(numbers[number % len(numbers)])): (first[number], last[number])
            for number in np.flatnonzero(np.isfinite(first)).tolist()
        }

    def lasts_ns(self, outcome: Outcome) -> float:
        """Return the slowest rank's step time, mean over its steps, as a report has it."""
        return slowest_ns(self.step_times(outcome))

    def slowest_rank(self, outcome: Outcome, before: int | None = None) -> int:
        """Return the rank whose step lasts longest, mean over its steps.

        It is `before` if that one lasts as long to a thousandth: ranks that end together differ by chance.
        """
        means = mean_by_rank(self.step_times(outcome))
        most = max(means.values(), default=0.0)
        if before is not None and means.get(before, -np.inf) >= most * (1 - AS_LONG):
            return before
        return next((rank for rank in sorted(means) if means[rank] == most), self.ranks[0])

    def spans_ns(self, outcome: Outcome, rank: int) -> list[tuple[float, float, int]]:
        """Return first and last instant, and the last node, of the time that a rank's steps last.

        A span is one step, or all together if they follow each other.
        """
        place = self.ranks.index(rank)
        ends = self._ends(outcome)
        spans = []
        for step in self.steps:
            if (place, step) in ends:
                nodes = np.flatnonzero((self.step == step) & (self.graph.rank == place))
                last = int(nodes[np.argmax(outcome.end_ns[nodes])])
                first_ns, last_ns = ends[place, step]
                spans.append((float(first_ns), float(last_ns), last))
        if self.first_ns is not None and spans:
            spans = [(float(self.first_ns[place]), *spans[-1][1:])]
        return spans

    def rank_steps(self) -> tuple[Ints, int]:
        """Return for each node a number of its rank and step, and how many numbers there are.

        Steps are counted over those that are here: their own numbers may be large.
        """
        numbers, place = np.unique(self.step, return_inverse=True)
        return self.graph.rank * len(numbers) + place, len(self.ranks) * len(numbers)

    def of_kinds(self, kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
        """Return which nodes are of one of the kinds."""
        return np.isin(self.graph.kind, [int(kind) for kind in kinds])

    @property
    def captured(self) -> bool:
        """Whether any time of the steps is what recording them took."""
        return bool((self.graph.kind == Kind.CAPTURE).any())

    @property
    def unknown_share(self) -> float:
        """Which share of the ranks' time is gaps that no record explains."""
        span = self.lasts_ns(self.recorded()) * len(self.steps) * len(self.ranks)
        return float(min(1.0, self.unknown_ns.sum() / span)) if span else 0.0


def slowest_ns(times: Mapping[tuple[int, int], float]) -> float:
    """Return the slowest rank's mean of times by step and rank; 0 without any."""
    return max(mean_by_rank(times).values(), default=0.0)


def mean_by_rank(times: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return rank -> the mean of times by step and rank."""
    by_rank: dict[int, list[float]] = {}
    for (_, rank), time in times.items():
        by_rank.setdefault(rank, []).append(time)
    return {rank: float(np.mean(each)) for rank, each in by_rank.items()}
