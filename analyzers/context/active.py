"""How many intervals run at once on a lane, as transfers on a node's network cards."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LONGEST_NS: Final = 86_400 * 10**9
"""A day: an interval that lasts longer, or ends before it begins, has a damaged time."""

_MOST: Final = 1 << 62
"""Positions on one axis of all lanes stay below, so that sums of them fit 64 bits."""


class Intervals(Struct, frozen=True):
    """Intervals of lanes, as arrays of one length: `begin_ns` <= `end_ns`, lanes numbered from 0."""

    lane: Ints
    begin_ns: Ints
    end_ns: Ints

    def sound(self) -> npt.NDArray[np.bool_]:
        """Return which of them have times that can be."""
        # By subtraction alone an end that wrapped around would look close.
        length = self.end_ns - self.begin_ns
        possible: npt.NDArray[np.bool_] = (
            (self.begin_ns <= self.end_ns) & (length >= 0) & (length <= LONGEST_NS)
        )
        return possible

    def only(self, kept: npt.NDArray[np.bool_]) -> Intervals:
        """Return these of them."""
        return Intervals(self.lane[kept], self.begin_ns[kept], self.end_ns[kept])


def mean_active(asked: Intervals, running: Intervals) -> Floats:
    """Return for each interval asked how many of `running` are active on its lane, as a mean over it.

    An interval that is itself among `running` counts as one. An interval of no length gets 0. Intervals with
    damaged times (see `LONGEST_NS`) get 0 and count for nothing.
    """
    mean: Floats = np.zeros(len(asked.lane))
    wanted = asked.sound()
    asked, running = asked.only(wanted), running.only(running.sound())
    if len(asked.lane) and len(running.lane):
        mean[wanted] = _mean_active(asked, running)
    return mean


def _mean_active(asked: Intervals, running: Intervals) -> Floats:
    # All lanes on one axis, one behind the other: at the end of each nothing runs any more.
    begin, end, from_, to = _places(asked, running)
    times = np.concatenate([running.begin_ns, running.end_ns])
    instants = np.concatenate([begin, end])
    order = np.argsort(instants, kind="stable")
    instants, times = instants[order], times[order]
    count = np.cumsum(np.where(order < len(begin), 1, -1))
    # The time that transfers were active before each instant at which their number changes. At the end of a
    # lane, and in gaps, the number is 0; the distance to the next instant does not matter.
    before = np.concatenate([[0], np.cumsum(count[:-1] * np.diff(times))])

    def until(places: Ints, now: Ints) -> Ints:
        last = np.searchsorted(instants, places, "right") - 1
        running_ns: Ints = np.where(last < 0, 0, before[last] + count[last] * (now - times[last]))
        return running_ns

    length = (asked.end_ns - asked.begin_ns).astype(np.float64)
    active = until(to, asked.end_ns) - until(from_, asked.begin_ns)
    mean: Floats = np.divide(active, length, out=np.zeros(len(length)), where=length > 0)
    return mean


def _places(asked: Intervals, running: Intervals) -> tuple[Ints, Ints, Ints, Ints]:
    """Return where running ones begin and end, and those asked, on one axis of all lanes."""
    times = (running.begin_ns, running.end_ns, asked.begin_ns, asked.end_ns)
    lanes = (running.lane, running.lane, asked.lane, asked.lane)
    first, last = min(int(each.min()) for each in times), max(int(each.max()) for each in times)
    span = last - first + 1
    if span * (1 + max(int(each.max()) for each in lanes)) < _MOST:
        places = [lane * span + each - first for lane, each in zip(lanes, times, strict=True)]
    else:
        # One time far from all others: the instants that occur are numbered instead.
        instants, number = np.unique(np.concatenate(times), return_inverse=True)
        parts = np.split(number, np.cumsum([len(each) for each in times])[:-1])
        places = [lane * len(instants) + each for lane, each in zip(lanes, parts, strict=True)]
    begin, end, from_, to = places
    return begin, end, from_, to
