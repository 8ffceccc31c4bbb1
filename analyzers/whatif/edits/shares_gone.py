"""Which share of each node's recorded time edits have taken out, so that equal work goes once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class SharesGone:
    """A book of shares of recorded time, by node. Different work adds up; two edits that take out the same
    work take out the larger share.

    Edits may also make a node faster, as another GPU does. A share is of whatever time is left then.
    """

    def __init__(self, nodes: int) -> None:
        self._whole: dict[str, tuple[Floats, Floats]] = {}
        """Work -> its share, and the part of it that ranks as fast as their peers still have."""
        self._parts: dict[tuple[str, Hashable], tuple[Floats, Floats]] = {}
        """The same of parts of a work, which add up to at most the whole."""
        self._late: Floats = np.zeros(nodes)
        """Excess work of late ranks over their peers."""
        self._shared: Floats = np.zeros(nodes)
        """Idle time of others that goes with it. It may be time of any work that is taken out too."""

    def book(self, work: str, share: Floats, part: Hashable = None, as_peers: Floats | None = None) -> Floats:
        """Take out a share of a work, all of it or a part; return times how much of each node's time is left.

        `as_peers`: the share if late ranks have become as fast as their peers; None if it is the same.
        """
        before = self._gone()
        new = share, share if as_peers is None else as_peers
        if part is None:
            self._whole[work] = _larger(self._whole.get(work), new)
        else:
            self._parts[work, part] = _larger(self._parts.get((work, part)), new)
        after = self._gone()
        left: Floats = np.where(before < 1, (1 - after) / np.where(before < 1, 1 - before, 1.0), 1.0)
        return left

    def book_late(self, share: Floats, is_late: Bools) -> None:
        """Note what goes if late ranks are as fast as their peers: their excess, and idle time of others."""
        self._late = np.maximum(self._late, np.where(is_late, share, 0.0))
        self._shared = np.maximum(self._shared, np.where(is_late, 0.0, share))

    def _gone(self) -> Floats:
        """Return which share of each node's recorded time is gone."""
        alone, besides = np.zeros(len(self._late)), self._late.copy()
        parts: dict[str, tuple[Floats, Floats]] = {}
        for (work, _), (share, as_peers) in self._parts.items():
            so_far = parts.get(work)
            parts[work] = (share, as_peers) if so_far is None else (so_far[0] + share, so_far[1] + as_peers)
        for work in dict.fromkeys([*self._whole, *parts]):
            share, as_peers = _larger(self._whole.get(work), parts.get(work))
            alone += share
            besides += as_peers
        # As a peer a late rank loses no less than it would alone: one more edit never lengthens a step.
        gone: Floats = np.minimum(1.0, np.maximum(np.maximum(alone, besides), self._shared))
        return gone


def _larger(one: tuple[Floats, Floats] | None, other: tuple[Floats, Floats] | None) -> tuple[Floats, Floats]:
    if one is None or other is None:
        both = other if one is None else one
        assert both is not None
        return both
    return np.maximum(one[0], other[0]), np.maximum(one[1], other[1])
