"""Result of a simulation of an event graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Outcome(Struct, frozen=True):
    """Times of all nodes in ns from the graph's zero. All arrays have one value a node."""

    arrival_ns: Floats
    start_ns: Floats
    """At a rendezvous: when the last node arrived; else the arrival."""
    end_ns: Floats
    duration_ns: Floats
    """As simulated, contention included."""
    last: Ints
    """Node whose arrival this one's start had to wait for: the last at its rendezvous, else itself."""
    held_by: Ints
    """Node whose end made it arrive when it did; -1 if nothing did but its release."""

    @property
    def makespan_ns(self) -> float:
        """When the last node ends."""
        return float(self.end_ns.max(initial=0.0))

    def end_by_rank(self, rank: Ints) -> Floats:
        """Return when the last node of each rank ends, [highest rank + 1]; 0 if it has none."""
        ends = np.zeros(int(rank.max(initial=-1)) + 1)
        np.maximum.at(ends, rank, self.end_ns)
        return ends

    @property
    def wait_ns(self) -> Floats:
        """How long each node stood at its rendezvous before the last one arrived."""
        waited: Floats = self.start_ns - self.arrival_ns
        return waited
