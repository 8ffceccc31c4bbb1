"""Makes event graphs: node by node, or from whole arrays at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind, Role

Like = npt.ArrayLike

_NODE: Final = {
    "duration_ns": "d",
    "lane": "q",
    "gap_ns": "d",
    "rank": "q",
    "kind": "B",
    "meet": "q",
    "role": "B",
    "release_ns": "d",
}
_EDGE: Final = {"edge_from": "q", "edge_to": "q", "lag_ns": "d"}
_DTYPE: Final = {"d": np.float64, "q": np.int64, "B": np.uint8}


class Builder(Struct):
    """Collects nodes and edges. Nodes of one lane run in the order in which they were added."""

    _columns: dict[str, array[Any]] = field(
        default_factory=lambda: {name: array(code) for name, code in (_NODE | _EDGE).items()}
    )
    _lanes: int = 0
    _meets: int = 0

    def __len__(self) -> int:
        return len(self._columns["lane"])

    def lane(self) -> int:
        """Return the number of a new lane."""
        self._lanes += 1
        return self._lanes - 1

    def rendezvous(self) -> int:
        """Return the number of a new rendezvous."""
        self._meets += 1
        return self._meets - 1

    def node(
        self,
        rank: int,
        lane: int,
        kind: Kind,
        duration_ns: float = 0.0,
        *,
        gap_ns: float = 0.0,
        meet: int = -1,
        role: Role = Role.BOTH,
        release_ns: float = 0.0,
        after: Sequence[int] = (),
    ) -> int:
        """Add a node that comes after these others, without lag, and return its number.

        Raises ValueError on a negative or unknown time.
        """
        if not (duration_ns >= 0 and gap_ns > -np.inf):
            raise ValueError(f"a node lasts {duration_ns} ns after a gap of {gap_ns} ns")
        number = len(self)
        values = (duration_ns, lane, gap_ns, rank, int(kind), meet, int(role), release_ns)
        for name, value in zip(_NODE, values, strict=True):
            self._columns[name].append(value)
        self._lanes = max(self._lanes, lane + 1)
        self._meets = max(self._meets, meet + 1)
        for before in after:
            self.edge(before, number)
        return number

    def edge(self, before: int, after: int, lag_ns: float = 0.0) -> None:
        """Let a node wait for another's end and this long on. Raises ValueError on an unknown lag."""
        if not lag_ns > -np.inf:
            raise ValueError(f"a lag of {lag_ns} ns")
        for name, value in zip(_EDGE, (before, after, lag_ns), strict=True):
            self._columns[name].append(value)

    def nodes(
        self,
        rank: Like,
        lane: Like,
        kind: Like,
        duration_ns: Like,
        *,
        gap_ns: Like = 0.0,
        meet: Like = -1,
        role: Like = int(Role.BOTH),
        release_ns: Like = 0.0,
    ) -> npt.NDArray[np.int64]:
        """Add many nodes, [k] each or one value for all, and return their numbers."""
        given = np.broadcast_arrays(duration_ns, lane, gap_ns, rank, kind, meet, role, release_ns)
        first, count = len(self), given[0].size
        for (name, code), values in zip(_NODE.items(), given, strict=True):
            self._columns[name].frombytes(np.ascontiguousarray(values, dtype=_DTYPE[code]).tobytes())
        if count:
            self._lanes = max(self._lanes, int(np.max(given[1])) + 1)
            self._meets = max(self._meets, int(np.max(given[5])) + 1)
        return np.arange(first, first + count)

    def edges(self, before: Like, after: Like, lag_ns: Like = 0.0) -> None:
        """Add many edges, [k] each or one value for all."""
        for (name, code), values in zip(
            _EDGE.items(), np.broadcast_arrays(before, after, lag_ns), strict=True
        ):
            self._columns[name].frombytes(np.ascontiguousarray(values, dtype=_DTYPE[code]).tobytes())

    def graph(self) -> EventGraph:
        """Return the graph of all that was added. Raises ValueError if an edge names no node."""
        made = {
            name: np.array(self._columns[name], dtype=_DTYPE[code]) for name, code in (_NODE | _EDGE).items()
        }
        ends = np.concatenate([made["edge_from"], made["edge_to"]])
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(self)):
            raise ValueError(f"an edge names a node that is none of {len(self)}")
        if not (np.all(made["duration_ns"] >= 0) and np.all(made["gap_ns"] > -np.inf)):
            raise ValueError("a node lasts a negative or unknown time")
        return EventGraph(**made)
