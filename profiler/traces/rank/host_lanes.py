"""Work of a rank's host that its device waited for, or that waited for its device."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

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
_HANDS_OVER: Final = re.compile(r"^c10d::(send|recv_)$")
"""Calls that send or receive; gloo's work in the call's own thread, NCCL's by launches."""

HOST_KINDS: Final = ("launch", "sync", "data", "message")
_LAUNCH, _SYNC, _DATA, _MESSAGE = range(4)


class HostRows(Struct):
    """Events of the host in columns, in order of start on each thread."""

    kind: I64
    """Place in `HOST_KINDS`."""
    name: I64
    """Place in `Trace.names`; -1 for launches, whose work has the name."""
    start_ns: I64
    end_ns: I64
    thread: I64
    call: I64
    """Row in `Trace.calls`; -1 for what is no call."""
    awaits: I64
    """Row of the device work that it waited for; -1 for none."""
    collective: I64
    """Place in `Facts.rows` of a message that the host handed over; -1 for none."""

    @property
    def is_launch(self) -> npt.NDArray[np.bool_]:
        """Which of the events are launches."""
        launches: npt.NDArray[np.bool_] = self.kind == _LAUNCH
        return launches


def host_rows(facts: Facts, main: int, rows: I64, first_ns: int, last_ns: int) -> HostRows:
    """Return the launches of the device work `rows`, the waits for it, the fetches of batches and messages.

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
    is_launch = launching[chosen]
    usual = int(np.median((end - start)[is_launch])) if is_launch.any() else 0
    waits = awaits >= 0
    returns = np.minimum(end, start + usual)
    own = np.flatnonzero(is_launch)
    rest = np.flatnonzero(waits | ~is_launch)
    fetches = _fetches(facts, main, first_ns, last_ns, start[calls.thread[chosen] == main])
    begun, ended, named = (np.array(each, dtype=np.int64) for each in _columns_of(fetches))
    none = np.full(len(fetches), -1, dtype=np.int64)
    messages = _messages(facts, first_ns, last_ns)
    not_one = np.full(messages.shape[1], -1, dtype=np.int64)
    parts = {
        "kind": (
            np.full(len(own), _LAUNCH),
            np.full(len(rest), _SYNC),
            np.full(len(fetches), _DATA),
            not_one + 1 + _MESSAGE,
        ),
        "name": (np.full(len(own), -1), calls.name[chosen[rest]], named, messages[0]),
        "start_ns": (start[own], np.where(is_launch, returns, start)[rest], begun, messages[1]),
        "end_ns": (np.where(waits, returns, end)[own], end[rest], ended, messages[2]),
        "thread": (calls.thread[chosen[own]], calls.thread[chosen[rest]], none + 1 + main, messages[3]),
        "call": (chosen[own], np.full(len(rest), -1), none, not_one),
        "awaits": (np.full(len(own), -1), awaits[rest], none, not_one),
        "collective": (np.full(len(own) + len(rest), -1), none, messages[4]),
    }
    columns = {name: np.concatenate(each).astype(np.int64) for name, each in parts.items()}
    # With equal starts a call's own part comes first, then the rest of it, then fetches.
    after = np.full(len(fetches) + len(not_one), 2 * len(chosen))
    turn = np.concatenate((2 * own, 2 * rest + 1, after))
    order = np.lexsort((turn, columns["start_ns"]))
    made = HostRows(**{name: column[order] for name, column in columns.items()})
    made.end_ns = np.maximum(made.start_ns, made.end_ns)
    return made


def _columns_of(fetches: list[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    return [each[0] for each in fetches], [each[1] for each in fetches], [each[2] for each in fetches]


def _awaited(facts: Facts, rows: I64, chosen: I64, syncs: npt.NDArray[np.bool_]) -> I64:
    """Return for each call the work whose end let it return; -1 if none did.

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


def _fetches(facts: Facts, main: int, first_ns: int, last_ns: int, called: I64) -> list[tuple[int, int, int]]:
    """Return when the training thread fetched batches, up to the first call within, and the name's place."""
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
                made.append((begin, finish, int(work.name[row])))
                until = finish
    return made


def _messages(facts: Facts, first_ns: int, last_ns: int) -> I64:
    """Return the calls that hand messages over without device work, as [5, n]: name, start, end, thread and
    place in `Facts.rows`, -1 for none."""
    trace, calls = facts.trace, facts.trace.calls
    named = matching(trace, _HANDS_OVER)
    rows = np.flatnonzero(named[trace.ops.name]) if len(trace.ops.name) else np.zeros(0, dtype=np.int64)
    rows = rows[(trace.ops.start_ns[rows] >= first_ns) & (trace.ops.start_ns[rows] < last_ns)]
    rows = rows[np.argsort(trace.ops.start_ns[rows], kind="stable")]
    place = {(row.issue_ns, row.thread): number for number, row in enumerate(facts.rows) if not row.timed}
    launching = np.unique(facts.launch[facts.launch >= 0])
    launching = launching[np.argsort(calls.start_ns[launching], kind="stable")]
    made, until = [], dict[int, int]()
    for row in rows.tolist():
        begin, finish = int(trace.ops.start_ns[row]), int(trace.ops.end_ns[row])
        thread = int(trace.ops.thread[row])
        # Below a dispatch mode a call is recorded twice, one inside the other.
        if begin < until.get(thread, begin):
            continue
        until[thread] = finish
        first, last = np.searchsorted(calls.start_ns[launching], (begin, finish))
        if not (calls.thread[launching[first:last]] == thread).any():
            number = place.get((begin, thread), -1)
            made.append((int(trace.ops.name[row]), begin, finish, thread, number))
    columns: I64 = np.array(made, dtype=np.int64).reshape(-1, 5).T
    return columns


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
