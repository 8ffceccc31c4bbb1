"""The steps of a trace."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.profiler.traces.collectives.serving import Served, marks
from shardtoll.profiler.traces.file.trace_columns import I64, HostWork, Trace

_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})$")


class Steps(Struct, frozen=True):
    """Steps in order of their first instant. A step is known by its place; `none` stands for no step."""

    numbers: tuple[int, ...]
    """The N of `ProfilerStep#N`."""
    start_ns: I64
    end_ns: I64
    """Host windows, in order and without overlap."""
    place: I64
    """Place in `numbers` of each window."""
    marked: bool
    """Whether the trace marks its steps; if not, all that was recorded is one step 0."""
    served: tuple[Served, ...] = ()
    """By place: the work of a step of an inference engine; empty if `ProfilerStep#N` marks steps."""

    @property
    def none(self) -> int:
        """The place that stands for work outside every step: after all others."""
        return len(self.numbers)

    def at(self, times_ns: I64) -> I64:
        """Return the place of the step whose host window holds each instant."""
        if not len(self.start_ns):
            return np.full(len(times_ns), self.none, np.int64)
        window = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        inside = (window >= 0) & (self.end_ns[window] > times_ns)
        return np.where(inside, self.place[window], self.none)


def find_steps(trace: Trace) -> Steps:
    """Return the steps that `ProfilerStep#N` annotations mark, or those of an inference engine if there are
    more. Without any, return one step of all that was recorded."""
    numbers_of = {nth: int(m[1]) for nth, name in enumerate(trace.names) if (m := _STEP.match(name))}
    notes = trace.annotations
    rows = [
        (start, end, numbers_of[name])
        for start, end, name in zip(*_columns(notes, numbers_of), strict=True)
        if end > start
    ]
    engine = marks(trace)
    served: tuple[Served, ...] = ()
    if len(engine) > len(rows):
        rows = [(mark.start_ns, mark.end_ns, nth) for nth, mark in enumerate(engine)]
        served = tuple(mark.served for mark in engine)
    if not rows:
        start_ns, end_ns = recorded(trace)
        start, end, place = (np.array([value], np.int64) for value in (start_ns, end_ns, 0))
        return Steps((0,), start, end, place, marked=False)
    rows.sort()
    rows = _flat(rows)
    starts = np.array([row[0] for row in rows], np.int64)
    ends = np.array([row[1] for row in rows], np.int64)
    numbers = tuple(dict.fromkeys(row[2] for row in rows))
    places = {number: nth for nth, number in enumerate(numbers)}
    place = np.array([places[row[2]] for row in rows], np.int64)
    in_place = tuple(served[number] for number in numbers) if served else ()
    return Steps(numbers, starts, ends, place, marked=True, served=in_place)


def _flat(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return windows (start, end, step) without overlap: each instant is of the one that began last.

    If a window lies within another, the rest of the outer one is still the outer step's.
    """
    flat: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []
    at_ns = rows[0][0]

    def until(end_ns: int) -> None:
        nonlocal at_ns
        while open_ and at_ns < end_ns:
            upto, step = open_[-1]
            if upto > at_ns:
                flat.append((at_ns, min(upto, end_ns), step))
                at_ns = min(upto, end_ns)
            if upto <= at_ns:
                open_.pop()
        at_ns = max(at_ns, end_ns)

    for start, end, step in rows:
        until(start)
        open_.append((end, step))
    until(max(end for _, end, _ in rows))
    return flat


def _columns(notes: HostWork, numbers_of: dict[int, int]) -> tuple[list[int], list[int], list[int]]:
    rows = np.isin(notes.name, list(numbers_of))
    return notes.start_ns[rows].tolist(), notes.end_ns[rows].tolist(), notes.name[rows].tolist()


def recorded(trace: Trace) -> tuple[int, int]:
    """Return first and last instant of anything in the trace."""
    works = (trace.device, trace.calls, trace.ops, trace.annotations)
    starts = [int(work.start_ns.min()) for work in works if len(work.start_ns)]
    ends = [int(work.end_ns.max()) for work in works if len(work.end_ns)]
    return min([trace.start_ns, *starts]), max([trace.end_ns, *ends])
