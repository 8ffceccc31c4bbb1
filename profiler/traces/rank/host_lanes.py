"""What the host of a rank did that its device waited for, or that waited for its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.trace_columns import I64
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.idle import SYNCS
from shardtoll.profiler.traces.rank.phases import FETCH, matching, rows_of

_LONG: Final = 5
"""A launch that lasts so many times as long as the median one waited for room in the queue, ..."""
_LONG_NS: Final = 30_000
"""... if it is longer than this."""
_AFTER_NS: Final = 50_000
"""A call that waited returns within this after what it waited for."""
_OVERLAP: Final = 0.01
"""Threads whose calls overlap the others' by a smaller share take turns with them."""


@dataclass(slots=True)
class HostRows:
    """Events of the host in columns, in order of start on each thread."""

    kind: list[str]
    name: list[str]
    start_ns: I64
    end_ns: I64
    thread: I64
    call: I64
    """Row in `Trace.calls`; -1 for what is no call."""
    awaits: I64
    """Row of the device work that it waited for; -1 for none."""
    is_launch: npt.NDArray[np.bool_]


def host_rows(facts: Facts, main: int, rows: I64, first_ns: int, last_ns: int) -> HostRows:
    """Return the launches of the device work `rows`, the waits for it and the fetches of batches.

    A launch that waited is two events: the call as long as it would have been, and the rest of it, `sync`.
    """
    calls, trace = facts.trace.calls, facts.trace
    launching = np.zeros(len(calls.start_ns), dtype=np.bool_)
    launching[facts.launch[rows][facts.launch[rows] >= 0]] = True
    syncs = matching(trace, SYNCS)[calls.name] & ~launching
    syncs &= (calls.start_ns >= first_ns) & (calls.start_ns < last_ns)
    chosen = np.flatnonzero(launching | syncs)
    chosen = chosen[np.argsort(calls.start_ns[chosen], kind="stable")]
    start, end = calls.start_ns[chosen], calls.end_ns[chosen]
    awaits = _awaited(facts, rows, chosen, syncs[chosen])
    kinds, names, starts, ends, threads, call, awaited = [], [], [], [], [], [], []

    def add(kind: str, name: str, begin: int, finish: int, thread: int, number: int, work: int) -> None:
        kinds.append(kind)
        names.append(name)
        starts.append(begin)
        ends.append(max(begin, finish))
        threads.append(thread)
        call.append(number)
        awaited.append(work)

    usual = int(np.median((end - start)[launching[chosen]])) if launching.any() else 0
    for number, begin, finish, thread, work in zip(
        chosen.tolist(),
        start.tolist(),
        end.tolist(),
        calls.thread[chosen].tolist(),
        awaits.tolist(),
        strict=True,
    ):
        is_launch = bool(launching[number])
        if is_launch:
            own = finish if work < 0 else min(finish, begin + usual)
            add("launch", "", begin, own, thread, number, -1)
        if work >= 0 or not is_launch:
            since = min(finish, begin + usual) if is_launch else begin
            add("sync", trace.names[calls.name[number]], since, finish, thread, -1, work)
    for begin, finish, name in _fetches(facts, main, first_ns, last_ns, start[calls.thread[chosen] == main]):
        add("data", name, begin, finish, main, -1, -1)
    order = np.argsort(np.array(starts, dtype=np.int64), kind="stable")
    start_ns, end_ns, of_thread, of_call, awaits = (
        np.array(each, dtype=np.int64)[order] for each in (starts, ends, threads, call, awaited)
    )
    return HostRows(
        kind=[kinds[place] for place in order],
        name=[names[place] for place in order],
        start_ns=start_ns,
        end_ns=end_ns,
        thread=of_thread,
        call=of_call,
        awaits=awaits,
        is_launch=np.array([kind == "launch" for kind in kinds], dtype=np.bool_)[order],
    )


def _awaited(facts: Facts, rows: I64, chosen: I64, syncs: npt.NDArray[np.bool_]) -> I64:
    """Return for each call the work whose end let it return; -1 where none did.

    Calls that wait are recorded as such: synchronisations, copies that block, launches that take many times
    as long as the usual one. Which work it was, the end says: of what was launched before, the last that
    ended within the call.
    """
    calls, device = facts.trace.calls, facts.trace.device
    start, end = calls.start_ns[chosen], calls.end_ns[chosen]
    lasted = end - start
    launches = ~syncs
    long = lasted > max(_LONG_NS, _LONG * (int(np.median(lasted[launches])) if launches.any() else 0))
    made = np.full(len(chosen), -1, dtype=np.int64)
    order = rows[np.argsort(device.end_ns[rows], kind="stable")]
    ends = device.end_ns[order]
    place = np.searchsorted(ends, end, side="right") - 1
    for number in np.flatnonzero((syncs | long) & (place >= 0)).tolist():
        work = int(order[place[number]])
        launched = facts.launch[work]
        before = launched < 0 or calls.start_ns[launched] <= start[number]
        within = start[number] <= device.end_ns[work] and end[number] - device.end_ns[work] <= _AFTER_NS
        if before and within:
            made[number] = work
    return made


def _fetches(facts: Facts, main: int, first_ns: int, last_ns: int, called: I64) -> list[tuple[int, int, str]]:
    """Return when the training thread fetched batches, up to the first call within."""
    names = matching(facts.trace, FETCH)
    made = []
    until = 0
    for work in (facts.trace.annotations, facts.trace.ops):
        rows = rows_of(work, names)
        rows = rows[
            (work.thread[rows] == main) & (work.start_ns[rows] >= first_ns) & (work.start_ns[rows] < last_ns)
        ]
        for row in rows[np.argsort(work.start_ns[rows], kind="stable")].tolist():
            begin, finish = int(work.start_ns[row]), int(work.end_ns[row])
            place = int(np.searchsorted(called, begin))
            if place < len(called):
                finish = min(finish, int(called[place]))
            if begin >= until and finish > begin:
                made.append((begin, finish, facts.trace.names[work.name[row]]))
                until = finish
    return made


def lanes_of(host: HostRows) -> I64:
    """Return a number for each event's thread; those that take turns, as training and autograd, share one."""
    threads, counts = np.unique(host.thread, return_counts=True)
    by_size = threads[np.argsort(-counts, kind="stable")].tolist()
    lane = np.zeros(len(host.thread), dtype=np.int64)
    shared = host.thread == by_size[0] if by_size else np.zeros(0, dtype=np.bool_)
    for number, thread in enumerate(by_size[1:], 1):
        here = host.thread == thread
        if _overlap(host, shared, here) <= _OVERLAP:
            shared |= here
        else:
            lane[here] = number
    return lane


def _overlap(host: HostRows, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    """Return the share of the other's events that begin while one of the first runs."""
    order = np.argsort(host.start_ns[one], kind="stable")
    start, end = host.start_ns[one][order], host.end_ns[one][order]
    place = np.searchsorted(start, host.start_ns[other], side="right") - 1
    inside = (place >= 0) & (end[place] > host.start_ns[other])
    return float(inside.mean())
