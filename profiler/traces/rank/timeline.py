"""The table of events of one rank: its launches, waits and device work, with what each depended on.

Only of traces with a device; of long recordings as many whole steps as `MOST_EVENTS` allows, the first ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from shardtoll.ledger.records.columns import column, int_column, word_column
from shardtoll.ledger.records.event import EVENT_KINDS
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.tables.tables import SCHEMAS, to_table
from shardtoll.profiler.traces.file.trace_columns import I64
from shardtoll.profiler.traces.rank.causes import Work
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.host_lanes import HOST_KINDS, host_rows, lanes_of
from shardtoll.profiler.traces.rank.phases import Phases
from shardtoll.profiler.traces.rank.split import COMM, COMPUTE, LOOKALIKE, MOVE
from shardtoll.profiler.traces.rank.stream_waits import stream_waits

MOST_EVENTS: Final = 60_000
"""Events of one rank that are kept; a job of many ranks keeps fewer of each, see `most_events`."""
_OF_A_JOB: Final = 3_000_000
_NAME: Final = 60
_LAYERS: Final = {COMPUTE: "compute", COMM: "collective", LOOKALIKE: "unclassified", MOVE: "copy"}
_OF_LAYER: Final = np.array([EVENT_KINDS.index(_LAYERS[layer]) for layer in sorted(_LAYERS)])
_OF_HOST: Final = np.array([EVENT_KINDS.index(kind) for kind in HOST_KINDS])


def most_events(world_size: int) -> int:
    """Return how many events each rank of such a job keeps."""
    return max(4_000, min(MOST_EVENTS, _OF_A_JOB // world_size))


def events(facts: Facts, phases: Phases, work: Work, rank: int, epoch_ns: int, most: int) -> pa.Table:
    """Return the table; empty for a trace without device work or without the calls that launched it."""
    if not facts.has_device or not (facts.launch >= 0).any():
        return to_table("events", ())
    first_ns, last_ns = _window(facts, most)
    if last_ns <= first_ns:
        return to_table("events", ())
    device, calls = facts.trace.device, facts.trace.calls
    launched_ns = np.where(facts.launch >= 0, calls.start_ns[facts.launch], device.start_ns)
    rows = np.flatnonzero((launched_ns >= first_ns) & (launched_ns < last_ns))
    # In the order of their streams; of equal starts the one launched first.
    rows = rows[np.lexsort((launched_ns[rows], device.start_ns[rows]))]
    launch = facts.launch[rows]
    host = host_rows(facts, phases.main, rows, first_ns, last_ns)
    waits = stream_waits(facts, rows, launch)
    count = len(host.start_ns)
    # The waits of a stream stand before the work that waits.
    waiting = np.array([pair[0] for pair in waits], dtype=np.int64)
    place_of = np.full(len(facts.launch), -1, dtype=np.int64)
    mine = _places(rows, waiting)
    before = np.bincount(mine, minlength=len(rows))
    index = count + np.arange(len(rows)) + np.cumsum(before)
    place_of[rows] = index
    wait_index = _wait_indices(index, before, mine)
    call_index = np.full(len(calls.start_ns) + 1, -1, dtype=np.int64)
    call_index[host.call[host.is_launch]] = np.flatnonzero(host.is_launch)
    total = count + len(rows) + len(waits)
    numbers = {
        key: np.full(total, -1, dtype=np.int64)
        for key in ("stream", "thread", "launch", "awaits", "collective", "name", "module")
    }
    kind, phase = np.full(total, EVENT_KINDS.index("wait")), np.zeros(total, dtype=np.int64)
    start, lasted = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    step = np.full(total, facts.steps.none, dtype=np.int64)
    # The host.
    start[:count], lasted[:count] = host.start_ns, host.end_ns - host.start_ns
    step[:count] = facts.steps.at(host.start_ns)
    numbers["thread"][:count] = lanes_of(host)
    numbers["awaits"][:count] = np.where(host.awaits >= 0, place_of[host.awaits], -1)
    kind[:count] = _OF_HOST[host.kind]
    phase[:count] = phases.at(host.thread, host.start_ns)
    numbers["name"][:count] = host.name
    numbers["collective"][:count] = host.collective
    # The device.
    start[index], lasted[index] = device.start_ns[rows], device.end_ns[rows] - device.start_ns[rows]
    step[index] = facts.owner[rows]
    numbers["stream"][index] = _streams(facts, rows)
    numbers["launch"][index] = np.where(launch >= 0, call_index[launch], -1)
    numbers["collective"][index] = _collectives(facts, rows)
    kind[index] = _OF_LAYER[facts.layer[rows]]
    phase[index] = work.phase[rows]
    numbers["name"][index] = _names(facts, rows)
    numbers["module"][index] = work.module[rows]
    # The waits of streams.
    start[wait_index] = device.start_ns[waiting]
    step[wait_index] = facts.owner[waiting]
    numbers["stream"][wait_index] = numbers["stream"][index[mine]]
    numbers["awaits"][wait_index] = place_of[np.array([pair[1] for pair in waits], dtype=np.int64)]
    phase[wait_index] = work.phase[waiting]
    names, modules = numbers.pop("name"), numbers.pop("module")
    of_steps = np.array([*facts.steps.numbers, 0], dtype=np.int64)
    columns = {
        **{key: int_column(values, values >= 0) for key, values in numbers.items()},
        "step": int_column(of_steps[step], step != facts.steps.none),
        "rank": int_column(np.full(total, rank, dtype=np.int64)),
        "index": int_column(np.arange(total)),
        "kind": word_column(kind, EVENT_KINDS),
        "name": _words(names, lambda number: _name(facts, number), missing=""),
        "phase": word_column(phase, PHASES),
        "module": _words(modules, work.name_of),
        "start_ns": int_column(start - epoch_ns),
        "duration_ns": int_column(lasted),
    }
    schema = SCHEMAS["events"]
    return pa.Table.from_arrays([columns[item.name] for item in schema], schema=schema)


def _words(numbers: I64, word_of: Callable[[int], str | None], *, missing: str | None = None) -> pa.Array:
    """Return the words of these numbers as a column; `missing` for -1."""
    # Numbers into lists: counted, not sorted.
    used = np.flatnonzero(np.bincount(numbers + 1)) - 1
    place = np.zeros(int(numbers.max(initial=-1)) + 2, np.int64)
    place[used + 1] = np.arange(len(used))
    place = place[numbers + 1]
    words = [missing if number < 0 else word_of(number) for number in used.tolist()]
    return column(words, pa.string()).take(int_column(place))


def _window(facts: Facts, most: int) -> tuple[int, int]:
    """Return the part of the recording that is kept: from the first step to the last that still fits."""
    steps, calls = facts.steps, facts.trace.calls
    count = np.bincount(facts.owner, minlength=steps.none + 1)[: steps.none] * 2
    first = np.full(steps.none, np.iinfo(np.int64).max)
    last = np.full(steps.none, np.iinfo(np.int64).min)
    np.minimum.at(first, steps.place, steps.start_ns)
    np.maximum.at(last, steps.place, steps.end_ns)
    used = np.flatnonzero(count)
    fits = used[np.cumsum(count[used]) <= most]
    # A step alone that is too long is left out: half a step has no end.
    if not len(fits) or not len(calls.start_ns):
        return 0, 0
    return int(first[fits].min()), int(last[fits].max())


def _places(rows: I64, wanted: I64) -> I64:
    """Return the place of each wanted row in `rows`, which holds it."""
    order = np.argsort(rows, kind="stable")
    return order[np.searchsorted(rows[order], wanted)] if len(wanted) else wanted


def _wait_indices(index: I64, before: I64, place: I64) -> I64:
    """Return the index of each wait: those of one work stand right before it."""
    order = np.argsort(place, kind="stable")
    nth = np.zeros(len(place), dtype=np.int64)
    ordered = place[order]
    if len(place):
        heads = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        nth[order] = np.arange(len(place)) - np.maximum.accumulate(np.where(heads, np.arange(len(place)), 0))
    made: I64 = index[place] - before[place] + nth
    return made


def _streams(facts: Facts, rows: I64) -> I64:
    """Return the stream of each work; streams of several devices get different numbers."""
    device = facts.trace.device
    unit, stream = device.device[rows].astype(np.int64), np.maximum(device.stream[rows], 0).astype(np.int64)
    if len(np.unique(unit)) <= 1:
        return stream
    _, unit = np.unique(unit, return_inverse=True)
    made: I64 = unit * (int(stream.max()) + 1) + stream
    return made


def _collectives(facts: Facts, rows: I64) -> I64:
    """Return the place in `facts.rows` of the collective that each work carried; -1 for other work."""
    device = facts.trace.device
    number: dict[tuple[int, int, int | None], int] = {}
    for nth, row in enumerate(facts.rows):
        if row.timed:
            number.setdefault((row.start_ns, row.end_ns, row.stream), nth)
    made = np.full(len(rows), -1, dtype=np.int64)
    for place in np.flatnonzero(facts.layer[rows] == COMM).tolist():
        row = rows[place]
        stream = int(device.stream[row])
        key = (int(device.start_ns[row]), int(device.end_ns[row]), stream if stream >= 0 else None)
        made[place] = number.get(key, -1)
    return made


def _names(facts: Facts, rows: I64) -> I64:
    """Return for each work a number of `_name`: the operator that launched it, else the kernel."""
    trace = facts.trace
    device, calls, operators = trace.device, trace.calls, trace.operators
    external, launch = device.external[rows], facts.launch[rows]
    if len(calls.external):
        external = np.where((external <= 0) & (launch >= 0), calls.external[np.maximum(launch, 0)], external)
    kind = operators.at(external)
    made: I64 = len(trace.names) + np.where(kind >= 0, len(trace.names) + kind, device.name[rows])
    return made


def _name(facts: Facts, number: int) -> str:
    """Return a name of the trace, for the host whole; then its names for the device, and its operators'."""
    names = facts.trace.names
    if number < len(names):
        return names[number]
    number -= len(names)
    return (names[number] if number < len(names) else facts.trace.operators.kinds[number - len(names)].name)[
        :_NAME
    ]
