"""A graph of events that a step consists of: what takes how long, where it runs, what it waits for.

Whoever has such a graph made it: from records (a replay), from prices (a forecast) or both. The arrays are
numpy's, so that a million nodes fit in some hundred MB; times are ns as float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


class Kind(IntEnum):
    """Kind of a node. The engine treats all kinds equally; contention, anatomy and edits distinguish them."""

    POINT = 0
    """Takes no time by itself: the beginning or end of a step, an event that others wait for."""
    HOST = 1
    """The host's own time: operators on a CPU, Python, launches."""
    COMPUTE = 2
    """Compute on a device, or on the training thread of a job without one."""
    COLLECTIVE = 3
    """A collective, send or receive."""
    COPY = 4
    """A copy between host and device or between devices."""
    GAP = 5
    """Measured time without a known reason."""
    DATA = 6
    """Reading the batch."""
    OPTIMIZER = 7
    """The optimizer's step."""
    SYNC = 8
    """The host waits for a device or for another thread."""
    CHECKPOINT = 9
    """Saving the model's state."""
    CAPTURE = 10
    """The recording's own work, excluded from the job."""


class Role(IntEnum):
    """Who waits for whom at a rendezvous."""

    BOTH = 0
    """It waits for the others and they for it: an all_reduce, a send that does not buffer."""
    FEEDS = 1
    """The others wait for its arrival, it waits for nobody: a root that broadcasts, a buffered send."""
    WAITS = 2
    """It waits for those that feed, nobody waits for it: who receives a broadcast."""


@dataclass(frozen=True, slots=True)
class EventGraph:
    """n nodes, m edges. Arrays are not to be written to; see `Builder` for making one.

    A node arrives when three conditions hold: its lane has come to it, all nodes before it have ended (each
    plus its lag), and its release has come. It starts on arrival, or, at a rendezvous at which it waits, when
    the last node that feeds the rendezvous has arrived too. It ends `duration_ns` later, and then its lane is
    free.
    """

    duration_ns: Floats
    """[n] From its start to its end; of a node at a rendezvous, its transfer."""
    lane: Ints
    """[n] Runs one node at a time, in the order of the nodes: a host thread, a device stream; -1 for none."""
    gap_ns: Floats
    """[n] From the end of the lane's node before to the earliest arrival: a measured gap, 0 as a rule.
    Negative where the two overlapped."""
    rank: Ints
    """[n]"""
    kind: Bytes
    """[n] A `Kind`."""
    meet: Ints
    """[n] Number of its rendezvous, from 0; -1 for none."""
    role: Bytes
    """[n] A `Role`; counts only at a rendezvous."""
    release_ns: Floats
    """[n] Arrives not before this instant; 0 as a rule."""
    edge_from: Ints
    """[m] The node before, any index."""
    edge_to: Ints
    """[m] The node that waits for its end."""
    lag_ns: Floats
    """[m] From the end of the one to the earliest arrival of the other."""

    def __len__(self) -> int:
        return len(self.duration_ns)

    def edited(
        self,
        *,
        duration_ns: Floats | None = None,
        gap_ns: Floats | None = None,
        lag_ns: Floats | None = None,
        meet: Ints | None = None,
        release_ns: Floats | None = None,
    ) -> EventGraph:
        """Return the graph with these arrays in place of its own. Lanes and edges stay as they are."""
        return replace(
            self,
            duration_ns=self.duration_ns if duration_ns is None else duration_ns,
            gap_ns=self.gap_ns if gap_ns is None else gap_ns,
            lag_ns=self.lag_ns if lag_ns is None else lag_ns,
            meet=self.meet if meet is None else meet,
            release_ns=self.release_ns if release_ns is None else release_ns,
        )
