"""The steps of a trace, and which step launched each piece of device work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.collectives.serving import Served, marks
from shardtoll.profiler.traces.file.trace_columns import I64, DeviceWork, HostWork, Trace

_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})$")


@dataclass(frozen=True, slots=True)
class Steps:
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
    """By place: what a step of an inference engine worked on; empty where `ProfilerStep#N` marks steps."""

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
    more; without any, one step of all that was recorded."""
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

    Where a window lies within another, the rest of the outer one is still the outer step's.
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


def launches(device: DeviceWork, calls: HostWork, pids: I64 | None = None) -> I64:
    """Return the row of the call that launched each piece of device work; -1 where it was not recorded.

    `pids`: the process of each thread, from `processes`. Each counts its correlation ids by itself.
    """
    numbered = np.flatnonzero(calls.correlation > 0)
    if not len(numbered):
        return np.full(len(device.start_ns), -1, np.int64)
    numbered = numbered[np.argsort(calls.correlation[numbered], kind="stable")]
    numbers = calls.correlation[numbered]
    place = np.minimum(np.searchsorted(numbers, device.correlation), len(numbers) - 1)
    hit = (numbers[place] == device.correlation) & (device.correlation > 0)
    if pids is not None:
        hit &= ~_ambiguous(numbers, pids[calls.thread[numbered]])[place]
    return np.where(hit, numbered[place], -1)


def processes(trace: Trace) -> I64 | None:
    """Return a number for the process of each thread; None where all are of one."""
    pids: dict[str, int] = {}
    process_of = [pids.setdefault(pid, len(pids)) for pid, _ in trace.threads]
    return np.array(process_of, np.int64) if len(pids) > 1 else None


def _ambiguous(numbers: I64, pid: I64) -> npt.NDArray[np.bool_]:
    """Return where a number, of numbers in order, is used by several processes: nothing tells whose it is."""
    _, group = np.unique(numbers, return_inverse=True)
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max, np.int64)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, group, pid)
    np.maximum.at(most, group, pid)
    return (least < most)[group]


def owners(device: DeviceWork, calls: HostWork, launch: I64, steps: Steps) -> I64:
    """Return the place of the step that launched each piece of device work.

    Where the launch is not on record, the work takes the step of the work before it on its stream, for
    streams run in order; before the first known one it belongs to no step.
    """
    if not steps.marked:
        return np.zeros(len(launch), np.int64)
    owner = np.full(len(launch), steps.none, np.int64)
    seen = launch >= 0
    owner[seen] = steps.at(calls.start_ns[launch[seen]])
    if seen.all():
        return owner
    order = np.lexsort((device.start_ns, device.stream, device.device))
    stream, unit = device.stream[order], device.device[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (stream[1:] != stream[:-1]) | (unit[1:] != unit[:-1])
    places = np.arange(len(order))
    head = np.maximum.accumulate(np.where(first, places, 0))
    last_seen = np.maximum.accumulate(np.where(seen[order], places, -1))
    takes = np.flatnonzero(~seen[order] & (last_seen >= head))
    owner[order[takes]] = owner[order[last_seen[takes]]]
    return owner
