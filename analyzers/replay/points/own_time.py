"""When a rank was blocked by communication, and when it was idle: what is left is its own time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]

Span = tuple[int, int]


def blocked(rows: Iterable[tuple[int, int, int]]) -> list[Span]:
    """Return the spans in which one rank was blocked, in order; `rows` are start, end and exposed time.

    A rank is blocked at the end of what it waits for. Collectives that were exposed at one instant share it
    (rule 6 of the accounting). So each takes the latest time of its span that no other has taken.
    """
    in_order = sorted(rows, key=lambda row: -row[1])
    if all(later[0] >= row[1] for later, row in pairwise(in_order)):
        # None overlap, as a rule: each is blocked at its end.
        spans = ((end - min(exposed, end - start), end) for start, end, exposed in reversed(in_order))
        return [(begin, end) for begin, end in spans if begin < end]
    done: list[Span] = []
    active: list[Span] = []  # the latest first
    for start, end, exposed in in_order:
        while active and active[0][0] >= end:
            done.append(active.pop(0))
        left, cursor, taken = exposed, end, list[Span]()
        for begin, finish in active:
            free = cursor - max(finish, start)
            if left > 0 and free > 0:
                taken.append((cursor - min(left, free), cursor))
                left -= min(left, free)
            cursor = min(cursor, begin)
        free = cursor - start
        if left > 0 and free > 0:
            taken.append((cursor - min(left, free), cursor))
        if taken:
            active = sorted([*active, *taken], reverse=True)
    return sorted([*done, *active])


def blocked_until(spans: list[Span], at_ns: Ints) -> Ints:
    """Return how long the rank had been blocked by each of these instants."""
    if not spans:
        return np.zeros(len(at_ns), dtype=np.int64)
    begin, end = np.array(spans, dtype=np.int64).T
    before = np.concatenate([[0], np.cumsum(end - begin)])
    place = np.searchsorted(begin, at_ns, "right")
    over = np.where(place > 0, np.maximum(0, end[place - 1] - at_ns), 0)
    until: Ints = before[place] - over
    return until


def idle_until(frame: pd.DataFrame, leadups: pd.DataFrame) -> pd.Series[int]:
    """Return how long a rank had been idle, for no known reason, by the start of each collective.

    `frame` has the collectives' rank and group_id. While one runs nothing is idle, so that it ends with what
    it began with. If lead-ups are not on record, no idle time is known: all is 0.
    """
    if leadups.empty:
        never: pd.Series[int] = pd.Series(0, index=frame.index, dtype="int64")
        return never
    place = frame.groupby("rank").cumcount()
    keyed = frame[["rank", "group_id"]].assign(index=place)
    # A damaged file may hold two lead-ups of one collective.
    known = leadups[["rank", "index", "host_ns"]].drop_duplicates(["rank", "index"])
    joined = keyed.merge(known, on=["rank", "index"], how="left")
    host = joined["host_ns"].fillna(0).to_numpy(dtype=np.int64)
    # Each lead-up begins where the group's collective before it ended.
    sums = pd.Series(host).groupby([joined["rank"].to_numpy(), joined["group_id"].fillna(-1).to_numpy()])
    until: pd.Series[int] = pd.Series(sums.cumsum().to_numpy(dtype=np.int64), index=frame.index)
    return until
