"""Cost of compute and communication to each other while they overlap on one rank."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.events.outcome import Outcome

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LLM_FOUNDRY: Final = 0.21
"""Share of the shorter side that an overlap of compute and communication costs. This value fits the step
times of FSDP jobs that MosaicML published for llm-foundry on A100 and H100."""


class Contention(Struct, frozen=True):
    """Each side takes longer by `factor` of the time in which the other runs on the same rank.

    So the longer side, which decides, grows by that share of the shorter one.
    """

    factor: float
    source: str
    """The source of the factor, for the reader of a prediction."""
    passes: int = 2
    """How often overlaps are measured anew in the slowed step."""
    already_ns: Floats | None = None
    """[n] Overlap that the graph's own durations contain, of recorded ones; None for priced ones, which
    contain none."""

    def slowed(self, graph: EventGraph, durations: Floats, outcome: Outcome) -> Floats:
        """Return the durations under the overlaps of this outcome; `durations` are those without."""
        overlap = overlap_ns(graph, outcome)
        if self.already_ns is not None:
            overlap = overlap - self.already_ns
        longer: Floats = np.maximum(durations + self.factor * overlap, 0.0)
        return longer


def overlap_ns(graph: EventGraph, outcome: Outcome) -> Floats:
    """Return how long each compute node overlaps a collective of its rank, and each collective compute.

    Waiting at a rendezvous is no transfer and slows nobody. [n], 0 for all other nodes.
    """
    overlap = np.zeros(len(graph))
    compute = np.isin(graph.kind, (Kind.COMPUTE, Kind.OPTIMIZER))
    collective = graph.kind == Kind.COLLECTIVE
    by_rank = np.argsort(graph.rank, kind="stable")
    cuts = np.flatnonzero(np.diff(graph.rank[by_rank])) + 1
    for nodes in np.split(by_rank, cuts):
        one, two = nodes[compute[nodes]], nodes[collective[nodes]]
        if len(one) and len(two):
            overlap[one] = _covered(outcome, one, two)
            overlap[two] = _covered(outcome, two, one)
    return overlap


def _covered(outcome: Outcome, nodes: Ints, by: Ints) -> Floats:
    """Return how much of each node's time lies within any of the others'."""
    order = by[np.argsort(outcome.start_ns[by], kind="stable")]
    reach = np.maximum.accumulate(outcome.end_ns[order])
    # Merged spans: a new one begins where nothing before reaches.
    first = np.concatenate([[True], outcome.start_ns[order][1:] > reach[:-1]])
    begin = outcome.start_ns[order][first]
    finish = np.append(reach[:-1][first[1:]], reach[-1])
    before = np.concatenate([[0.0], np.cumsum(finish - begin)])

    def until(time: Floats) -> Floats:
        place = np.searchsorted(begin, time, "right")
        over = np.where(place > 0, np.maximum(0.0, finish[place - 1] - time), 0.0)
        covered: Floats = before[place] - over
        return covered

    return until(outcome.end_ns[nodes]) - until(outcome.start_ns[nodes])
