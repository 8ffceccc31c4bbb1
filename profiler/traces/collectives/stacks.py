"""Which intervals of a thread enclose an instant: annotations, operators and Python frames nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.profiler.traces.file.trace_columns import I32, I64, HostWork


class _Level(Struct, frozen=True):
    """Intervals of one depth: in order, next to each other."""

    start_ns: I64
    end_ns: I64
    row: I64


class Nest:
    """The intervals of one thread, sorted into depths once, so that many instants are looked up at once.

    A depth is the number of intervals open when one starts. Ends count as inside, for old traces cut
    times to whole microseconds.
    """

    def __init__(self, start_ns: I64, end_ns: I64, rows: I64) -> None:
        order = np.lexsort((-end_ns, start_ns))
        start, end, row = start_ns[order], end_ns[order], rows[order]
        ended = np.searchsorted(np.sort(end), start, side="left")
        depth = np.maximum(np.arange(len(start)) - ended, 0)
        by_depth = np.argsort(depth, kind="stable")
        cuts = np.flatnonzero(np.diff(depth[by_depth])) + 1
        parts = np.split(by_depth, cuts) if len(by_depth) else []
        self._levels = [_Level(start[part], end[part], row[part]) for part in parts]

    def path(self, at_ns: I64) -> Iterator[I64]:
        """Yield, for each depth from the outside in, the row that encloses each instant; -1 if none."""
        for level in self._levels:
            place = np.searchsorted(level.start_ns, at_ns, side="right") - 1
            inside = (place >= 0) & (level.end_ns[place] >= at_ns)
            yield np.where(inside, level.row[place], -1)

    def innermost(self, at_ns: I64) -> I64:
        """Return the row of the innermost interval at each instant; -1 if none."""
        best = np.full(len(at_ns), -1, np.int64)
        for rows in self.path(at_ns):
            best = np.where(rows >= 0, rows, best)
        return best

    def outermost(self, at_ns: I64) -> I64:
        """Return the row of the outermost interval at each instant; -1 if none."""
        best = np.full(len(at_ns), -1, np.int64)
        for rows in self.path(at_ns):
            best = np.where(best >= 0, best, rows)
        return best


def nests(work: HostWork, chosen: npt.NDArray[np.bool_]) -> dict[int, Nest]:
    """Return one Nest a thread over the chosen rows."""
    rows = np.flatnonzero(chosen)
    return nests_of(work.start_ns[rows], work.end_ns[rows], work.thread[rows], rows)


def nests_of(start_ns: I64, end_ns: I64, thread: I32, rows: I64) -> dict[int, Nest]:
    """Return one Nest a thread over intervals given in columns; `rows` are the caller's numbers for them."""
    made = {}
    for number in np.unique(thread).tolist():
        here = thread == number
        made[number] = Nest(start_ns[here], end_ns[here], rows[here])
    return made


def innermost(of_thread: Mapping[int, Nest], thread: npt.NDArray[np.integer], at_ns: I64) -> I64:
    """Return the innermost row for each (thread, instant); -1 if none."""
    best = np.full(len(at_ns), -1, np.int64)
    for number, nest in of_thread.items():
        here = np.flatnonzero(thread == number)
        if len(here):
            best[here] = nest.innermost(at_ns[here])
    return best


def paths(of_thread: Mapping[int, Nest], thread: npt.NDArray[np.integer], at_ns: I64) -> list[list[int]]:
    """Return, for each (thread, instant), the rows that enclose it, outermost first."""
    open_rows: list[list[int]] = [[] for _ in range(len(at_ns))]
    for number, nest in of_thread.items():
        here = np.flatnonzero(thread == number)
        if not len(here):
            continue
        for rows in nest.path(at_ns[here]):
            for place in np.flatnonzero(rows >= 0).tolist():
                open_rows[int(here[place])].append(int(rows[place]))
    return open_rows


def merged(start_ns: I64, end_ns: I64) -> tuple[I64, I64]:
    """Return the same instants as disjoint intervals in order; empty ones are dropped."""
    real = end_ns > start_ns
    start, end = start_ns[real], end_ns[real]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    closes = np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(start) - 1]))
    return start[opens], reach[closes]


def covered(start_ns: I64, end_ns: I64, at_ns: I64) -> npt.NDArray[np.bool_]:
    """Return which instants lie in disjoint, ordered intervals."""
    if not len(start_ns):
        return np.zeros(len(at_ns), np.bool_)
    place = np.searchsorted(start_ns, at_ns, side="right") - 1
    inside: npt.NDArray[np.bool_] = (place >= 0) & (end_ns[place] > at_ns)
    return inside
