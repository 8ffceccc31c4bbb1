"""Why the device of a rank was idle: a pipeline's schedule, data loading, a host that waited for the device.

The timeline of `split` is cut further where a reason starts or ends. If several reasons explain an idle
instant, the first of `stall.IDLE_KINDS` has it. The last, `host`, has all instants that none explains. A
short gap that none of the others explains is a `launch` if the work after it was launched late.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.ledger.records.stall import IDLE_KINDS, SHORT_GAP_NS
from shardtoll.profiler.traces.collectives.stacks import innermost, nests
from shardtoll.profiler.traces.file.trace_columns import COPY, I8, I64, Trace
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.phases import FETCH, PIPELINE, matching, rows_of
from shardtoll.profiler.traces.rank.split import IDLE, ordered

BUBBLE, DATA, SYNC, LAUNCH, HOST = (
    IDLE + IDLE_KINDS.index(name) for name in ("bubble", "data", "host-sync", "launch", "host")
)
"""Kinds of idle pieces, in the numbering of `split`'s layers."""

SYNCS: Final = re.compile(
    r"^(cuda|hip|cu|xpu)\w*Synchronize|^(cuda|hip)Memcpy(2D|3D)?$|^hipMemcpyWithStream$"
)
_BLOCKING_COPY: Final = re.compile(r"DtoH.*Pageable")
_READS: Final = re.compile(r"^aten::(item|_local_scalar_dense|nonzero)$")


class Reasons(Struct, frozen=True):
    """Intervals that explain idle time, in columns."""

    kind: I64
    start_ns: I64
    end_ns: I64
    """Until when it explains idle time: for a wait, the next launch."""
    lasted_ns: I64
    name: I64
    """Number into `Trace.names`."""
    thread: I64


class Pieces(Struct, frozen=True):
    """The timeline in pieces: each has a layer (idle ones a kind of idle) and a step."""

    edges_ns: I64
    layer: I8
    owner: I64
    reason: I64
    """Row of the reason that explains an idle piece; -1 if none."""


def reasons(facts: Facts, main: int) -> Reasons:
    """Return what explains idle time, by kind and start."""
    parts = [_bubbles(facts), _fetches(facts.trace, main), _waits(facts)]
    columns = [np.concatenate([part[nth] for part in parts]).astype(np.int64) for nth in range(5)]
    kind = np.concatenate([np.full(len(part[0]), BUBBLE + nth) for nth, part in enumerate(parts)]).astype(
        np.int64
    )
    order = np.lexsort((columns[0], kind))
    start, end, lasted, name, thread = (column[order] for column in columns)
    return Reasons(kind[order], start, end, lasted, name, thread)


_Part = tuple[npt.NDArray[np.int64], ...]


def _bubbles(facts: Facts) -> _Part:
    """Return, for each step, the time from its first pipeline annotation to the end of its last."""
    notes = facts.trace.annotations
    rows = rows_of(notes, matching(facts.trace, PIPELINE))
    place = facts.steps.at(notes.start_ns[rows])
    columns: list[list[int]] = [[] for _ in range(5)]
    for step in np.unique(place).tolist():
        here = rows[place == step]
        start, end = int(notes.start_ns[here].min()), int(notes.end_ns[here].max())
        first = here[notes.start_ns[here].argmin()]
        for column, value in zip(
            columns, (start, end, end - start, int(notes.name[first]), int(notes.thread[first])), strict=True
        ):
            column.append(value)
    return tuple(np.array(column, np.int64) for column in columns)


def _fetches(trace: Trace, main: int) -> _Part:
    """Return when the training thread fetched a batch."""
    names = matching(trace, FETCH)
    parts = []
    for work in (trace.annotations, trace.ops):
        rows = rows_of(work, names)
        rows = rows[work.thread[rows] == main]
        lasted = work.end_ns[rows] - work.start_ns[rows]
        parts.append((work.start_ns[rows], work.end_ns[rows], lasted, work.name[rows], work.thread[rows]))
    return tuple(np.concatenate([part[nth] for part in parts]).astype(np.int64) for nth in range(5))


def _waits(facts: Facts) -> _Part:
    """Return when a thread that launches work waited for a busy device, each until the next launch of any.

    A wait without any device work during it waited for nothing: the time after it is the host's own.
    """
    trace, calls = facts.trace, facts.trace.calls
    nothing = np.zeros(0, np.int64)
    launched = facts.launch[facts.launch >= 0]
    if not len(launched):
        return (nothing,) * 5
    is_wait = matching(trace, SYNCS)[calls.name]
    blocking = matching(trace, _BLOCKING_COPY)
    device = trace.device
    copies = (device.kind == COPY) & blocking[device.name] & (facts.launch >= 0)
    is_wait[facts.launch[copies]] = True
    rows = np.flatnonzero(is_wait & np.isin(calls.thread, np.unique(calls.thread[launched])))
    split = facts.split
    busy = np.concatenate(([0], np.cumsum(split.layer != IDLE)))
    first = np.searchsorted(split.edges_ns, calls.start_ns[rows], side="right") - 1
    last = np.searchsorted(split.edges_ns, calls.end_ns[rows])
    size = len(split.layer)
    rows = rows[busy[np.clip(last, 0, size)] > busy[np.clip(first, 0, size)]]
    starts = np.sort(calls.start_ns[np.unique(launched)])
    place = np.searchsorted(starts, calls.end_ns[rows])
    following = starts[np.minimum(place, len(starts) - 1)]
    until = np.where(place < len(starts), following, calls.end_ns[rows])
    name = calls.name[rows].astype(np.int64)
    reads = nests(trace.ops, matching(trace, _READS)[trace.ops.name]) if len(trace.ops.name) else {}
    around = innermost(reads, calls.thread[rows], calls.start_ns[rows])
    read = around >= 0
    name[read] = trace.ops.name[around[read]]
    lasted = calls.end_ns[rows] - calls.start_ns[rows]
    return (calls.start_ns[rows], until, lasted, name, calls.thread[rows].astype(np.int64))


def pieces(facts: Facts, why: Reasons, turns_ns: I64) -> Pieces:
    """Cut the timeline at the reasons, and at `turns_ns`, and give each idle piece its kind and reason."""
    split = facts.split
    low, high = split.edges_ns[0], split.edges_ns[-1]
    cuts = np.clip(np.concatenate((why.start_ns, why.end_ns, turns_ns)), low, high)
    edges = ordered(np.concatenate((split.edges_ns, cuts)))
    segment = np.searchsorted(split.edges_ns, edges[:-1], side="right") - 1
    layer, owner = split.layer[segment], split.owner[segment]
    reason = np.full(len(layer), -1, np.int64)
    for kind in (BUBBLE, DATA, SYNC):
        rows = np.flatnonzero(why.kind == kind)
        start, end, row = disjoint(why.start_ns[rows], why.end_ns[rows], rows)
        if not len(start):
            continue
        place = np.searchsorted(start, edges[:-1], side="right") - 1
        takes = (place >= 0) & (end[place] > edges[:-1]) & (layer == IDLE) & (reason < 0)
        reason[takes] = row[place[takes]]
    idle = layer == IDLE
    kinds = np.append(why.kind, HOST)
    late = _launched_late(facts, edges, idle, reason)
    layer = np.where(idle, np.where(late, LAUNCH, kinds[reason]), layer).astype(np.int8)
    return Pieces(edges, layer, owner, reason)


def _launched_late(
    facts: Facts, edges_ns: I64, idle: npt.NDArray[np.bool_], reason: I64
) -> npt.NDArray[np.bool_]:
    """Return for each piece whether it is part of a short gap that ends with work launched late.

    Late is a launch that returned after the piece began: until then the device had nothing to do. Work that
    was queued by then waited for something else, as another stream. Such a gap holds no piece with another
    reason.
    """
    late = np.zeros(len(idle), np.bool_)
    rows, calls = np.flatnonzero(idle), facts.trace.calls
    if not len(rows) or not (facts.launch >= 0).any():
        return late
    opens = np.concatenate(([True], np.diff(rows) > 1))
    gap = np.cumsum(opens) - 1
    first, last = rows[opens], rows[np.append(opens[1:], True)]
    explained = np.bincount(gap, reason[rows] >= 0) > 0
    start_ns = facts.trace.device.start_ns
    order = np.argsort(start_ns, kind="stable")
    following = np.searchsorted(start_ns[order], edges_ns[last + 1])
    launch = np.append(facts.launch[order], -1)[following]
    short = edges_ns[last + 1] - edges_ns[first] <= SHORT_GAP_NS
    returned_ns = np.where(launch >= 0, calls.end_ns[launch], np.iinfo(np.int64).min)
    late[rows] = (short & ~explained)[gap] & (returned_ns[gap] > edges_ns[rows])
    return late


def disjoint(start_ns: I64, end_ns: I64, rows: I64) -> tuple[I64, I64, I64]:
    """Return intervals in order without overlap: each instant goes to the interval that started first."""
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    if len(order) > 1:
        start = start.copy()
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    left = end > start
    return start[left], end[left], rows[order][left]
