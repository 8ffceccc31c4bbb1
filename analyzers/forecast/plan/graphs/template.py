"""A step's graph without its times: built once for each topology, then priced as often as wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.replay.events.contention import Contention
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind
from shardtoll.analyzers.replay.events.event_order import Order, order_of


@dataclass(frozen=True)
class Template:
    """A graph whose nodes take a share of a numbered duration each."""

    graph: EventGraph
    order: Order
    slot: npt.NDArray[np.int64]
    """[n] Number of the duration."""
    share: npt.NDArray[np.float64]
    """[n] Part of it."""

    def step_ns(self, durations_ns: Sequence[float], contention: float) -> float:
        """Return when the last node ends, with these durations by number."""
        own = np.array(durations_ns)[self.slot] * self.share
        slowed = Contention(contention, "fitted", passes=1) if contention > 0 else None
        return simulate(self.graph, own, slowed, order=self.order).makespan_ns


@dataclass
class Drawn:
    """Collects a template."""

    builder: Builder = field(default_factory=Builder)
    slots: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def node(
        self, rank: int, lane: int, kind: Kind, slot: int, share: float = 1.0, after: Sequence[int] = ()
    ) -> int:
        """Add a node that takes a share of duration number `slot`."""
        self.slots.append(slot)
        self.shares.append(share)
        return self.builder.node(rank, lane, kind, 0.0, after=after)

    def template(self) -> Template:
        """Return it, with the order of its events found."""
        graph = self.builder.graph()
        return Template(graph, order_of(graph), np.array(self.slots), np.array(self.shares))
