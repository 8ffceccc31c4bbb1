"""How many intervals run at once on a lane, as transfers on a node's network cards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of lanes, as arrays of one length: `begin_ns` <= `end_ns`, lanes numbered from 0."""

    lane: Ints
    begin_ns: Ints
    end_ns: Ints


def mean_active(asked: Intervals, running: Intervals) -> Floats:
    """Return for each interval asked how many of `running` are active on its lane, as a mean over it.

    An interval that is itself among `running` counts as one. Of an interval of no length 0.
    """
    if not len(asked.lane) or not len(running.lane):
        return np.zeros(len(asked.lane))
    # All lanes on one axis, one behind the other: at the end of each nothing runs any more.
    first = min(int(asked.begin_ns.min()), int(running.begin_ns.min()))
    span = max(int(asked.end_ns.max()), int(running.end_ns.max())) - first + 1
    begin, end = (running.lane * span + times - first for times in (running.begin_ns, running.end_ns))
    at = np.concatenate([begin, end])
    order = np.argsort(at, kind="stable")
    at = at[order]
    count = np.cumsum(np.where(order < len(begin), 1, -1))
    # The time that transfers were active before each instant at which their number changes.
    before = np.concatenate([[0], np.cumsum(count[:-1] * np.diff(at))])

    def until(times: Ints) -> Ints:
        place = np.searchsorted(at, times, "right") - 1
        told: Ints = np.where(place < 0, 0, before[place] + count[place] * (times - at[place]))
        return told

    from_, to = (asked.lane * span + times - first for times in (asked.begin_ns, asked.end_ns))
    length = (to - from_).astype(np.float64)
    mean: Floats = np.divide(until(to) - until(from_), length, out=np.zeros(len(length)), where=length > 0)
    return mean
