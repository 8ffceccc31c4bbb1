"""Reduces on gloo: nobody leaves one, which is a ring, before all have come.

With fewer elements than ranks some ranks leave early. Times show for whom each rank can have waited. In
order of arrival these are the first ones, so a sort takes the place of pairs of ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]


class Arrivals(Struct, frozen=True):
    """Rows of reduces on gloo, operation by operation, each in order of arrival. Places are in that order."""

    row: Ints
    """Which row of those given."""
    first: Ints
    """Place of the first arrival at the same operation."""
    last: Ints
    """Place of the last one."""
    cut: Ints
    """Place of the last one for which the row can have waited; its own is among them."""


def of_reduces(
    op: npt.NDArray[np.object_], match: Ints, place: Ints, times: tuple[Ints, Ints], slack_ns: int
) -> Arrivals:
    """Return who had come to each reduce before a row left it; `times` are all rows' starts and ends.

    `match` numbers operations, -1 for unmatched rows; `place` is from `held.places`. A rank that left earlier
    than `slack_ns` before another arrived did not wait for it.
    """
    start, end = times
    row = np.flatnonzero((op == "reduce") & (match >= 0) & (place >= 0))
    row = row[np.lexsort((row, start[row], match[row]))]
    number = match[row]
    first = np.searchsorted(number, number)
    last = np.searchsorted(number, number, "right") - 1
    # Arrivals and departures of an operation in one order: before a departure stand those that had come.
    leaves = np.repeat([False, True], len(row))
    instants = np.concatenate([start[row], end[row] + slack_ns])
    order = np.lexsort((leaves, instants, np.tile(number, 2)))
    had_come = np.zeros(len(order), dtype=np.int64)
    had_come[order] = np.cumsum(~leaves[order])
    return Arrivals(row, first, last, had_come[len(row) :] - 1)
