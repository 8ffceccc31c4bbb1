"""The same cut as `accounting.partition` makes, for the thousands of operators of a surveyed step.

It runs at the end of each surveyed step, while the training waits: vectorised it takes a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.accounting import Interval, union

Times: TypeAlias = npt.NDArray[np.int64]
"""Intervals flat: start, end, start, end, ..., in ns."""

_BITS: Final = 9
"""Bits to count the intervals of one layer that are open at once; seven layers fit 64 signed bits."""
MOST_LAYERS: Final = 63 // _BITS


@dataclass(frozen=True, slots=True)
class Cut:
    """A window cut into the instants of each layer and a last one, the rest."""

    totals_ns: tuple[int, ...]
    """Length of each layer; the last is the rest. They add up to the window exactly."""
    _times: Times
    _owner: npt.NDArray[Any]

    def intervals(self, layer: int) -> list[Interval]:
        """Return the instants of one layer as disjoint intervals in order."""
        places = np.flatnonzero(self._owner == layer)
        return union(list(zip(self._times[places].tolist(), self._times[places + 1].tolist(), strict=True)))


@dataclass(frozen=True, slots=True)
class Edges:
    """Instants at which intervals begin and end, and by how much each changes what is open then."""

    times: Times
    changes: Times


def flat(intervals: Sequence[Interval], layer: int) -> Edges:
    """Return the edges of a layer's intervals, which may overlap."""
    merged = union(intervals)
    one = 1 << (_BITS * layer)
    times = np.fromiter((at for interval in merged for at in interval), np.int64, 2 * len(merged))
    return Edges(times, np.tile(np.array((one, -one), np.int64), len(merged)))


def around(times: Sequence[int], outer: int, inner: int) -> Edges:
    """Return the edges of `times`, four a piece: outer begins, inner begins, inner ends, outer ends.

    The inner layer's interval is none of the outer's. At an instant at most 511 of a layer may overlap.
    """
    out, within = 1 << (_BITS * outer), 1 << (_BITS * inner)
    changes = np.array((out, within - out, out - within, -out), np.int64)
    return Edges(np.array(times, np.int64), np.tile(changes, len(times) // 4))


def cut(window: Interval, layers: int, edges: Sequence[Edges]) -> Cut:
    """Cut the window into at most `MOST_LAYERS` layers and the rest.

    An instant that several layers claim belongs to the first of them, one that none claims to the rest.
    """
    assert layers <= MOST_LAYERS
    times = np.concatenate([np.array(window, np.int64), *(one.times for one in edges)])
    changes = np.concatenate([np.zeros(2, np.int64), *(one.changes for one in edges)])
    np.clip(times, window[0], window[1], out=times)
    order = np.argsort(times, kind="stable")
    times = times[order]
    # Between two edges: how many intervals of each layer are open, layer by layer from the lowest bits up.
    state = np.cumsum(changes[order])[:-1]
    lowest = (state & -state).astype(np.float64)
    # frexp: 2**k has the exponent k + 1, zero has 0.
    owner = (np.frexp(lowest)[1] - 1) // _BITS
    owner[state == 0] = layers
    totals = np.bincount(owner, weights=np.diff(times), minlength=layers + 1)
    return Cut(tuple(map(int, totals)), times, owner)
