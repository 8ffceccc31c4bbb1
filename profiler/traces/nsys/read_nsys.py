"""One SQLite export of Nsight Systems in, one `Trace` out."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.collectives.stacks import innermost, nests_of
from shardtoll.profiler.traces.file.collect import device_work, host_work
from shardtoll.profiler.traces.file.columns import ROW_LIMIT, Table, numbers
from shardtoll.profiler.traces.file.formats import KINETO
from shardtoll.profiler.traces.file.interned import working_calls
from shardtoll.profiler.traces.file.sources import TraceFile
from shardtoll.profiler.traces.file.trace_columns import I64, DeviceWork, HostWork, Trace
from shardtoll.profiler.traces.nsys import about, words
from shardtoll.profiler.traces.nsys.columns import columns_of, correlations, times
from shardtoll.profiler.traces.nsys.database import Database, open_database
from shardtoll.profiler.traces.nsys.device import WHOLE_GRAPH, apart, device_table, read_device
from shardtoll.profiler.traces.nsys.identity import Identity, identified, meta_of
from shardtoll.profiler.traces.nsys.marks import renamed
from shardtoll.profiler.traces.nsys.range_query import RANGES
from shardtoll.profiler.traces.nsys.ranges import Ranges, add_calls, read_ranges
from shardtoll.profiler.traces.nsys.state import CALLS, DEVICE_TABLES, GRAPHS, Read
from shardtoll.profiler.traces.nsys.strings import texts_of

_OURS: Final = ("CUPTI_ACTIVITY_", "TARGET_INFO_", "META_DATA_", "NVTX_", "ANALYSIS_", "StringIds")
"""How tables of Nsight Systems begin."""

_RECORD: Final = "record with nsys profile --trace=cuda,nvtx, then nsys export --type sqlite"


def read_nsys(file: TraceFile, *, row_limit: int = ROW_LIMIT) -> Trace:
    """Read one export of any version. Raises TraceError, in one line, for a damaged file or a database of
    another program. Also if more than `row_limit` rows would be kept.
    """
    with open_database(file) as database:
        _check(database, file.address)
        read = Read(database, file.address, row_limit)
        works = device_table()
        read_device(read, works)
        calls = _calls_table()
        _read_calls(read, calls)
        ranges = Ranges(has_device=works.rows > 0)
        read_ranges(read, ranges)
        identity = identified(read, _working(read, works, calls), ranges)
        add_calls(read, ranges, identity.world_size)
        if not any(table.rows for table in (works, calls, ranges.annotations, ranges.ops)):
            bad = f" ({read.bad} have no usable times)" if read.bad else ""
            text = f"{file.address} is an export of Nsight Systems without one CUDA or NVTX event{bad}"
            raise TraceError(text, _RECORD)
        return _trace(read, works, calls, ranges, identity)


def _check(database: Database, where: str) -> None:
    """Raise TraceError unless the database has tables of Nsight Systems."""
    names = database.tables
    if any(name.startswith("rocpd") for name in names):
        raise TraceError(f"{where} is a database of rocprof (rocpd, SQLite)", KINETO)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in names and "_id_" in names["CUPTI_ACTIVITY_KIND_KERNEL"]:
        raise TraceError(
            f"{where} is a database of nvprof (SQLite), the predecessor of Nsight Systems", _RECORD
        )
    if not any(name.startswith(_OURS) for name in names):
        shown = ", ".join(sorted(names)[:4])[:80]
        what = f"with the tables {shown}" if shown else "without a table"
        raise TraceError(f"{where} is an SQLite database {what}, none of Nsight Systems", KINETO)
    if not any(name in names for name in (*DEVICE_TABLES, *CALLS, RANGES)):
        text = f"{where} is an export of Nsight Systems without tables of CUDA or NVTX events"
        raise TraceError(text, _RECORD)


def _working(read: Read, works: Table, calls: Table) -> list[str]:
    """Return the processes with device work, else with calls, the busiest first."""
    if read.knows_processes() and works.rows:
        keys = list(read.threads.processes)
        numbers, counts = np.unique(works.view("process"), return_counts=True)
        return [
            read.threads.process_name(keys[numbers[place]]) for place in np.argsort(-counts, kind="stable")
        ]
    threads = read.threads.names()
    numbers, counts = np.unique(calls.view("thread"), return_counts=True)
    busiest = [threads[numbers[place]][0] for place in np.argsort(-counts, kind="stable")]
    return list(dict.fromkeys(busiest))


def _trace(read: Read, works: Table, calls: Table, ranges: Ranges, identity: Identity) -> Trace:
    """Return the columns of all that was read; the tables are used up."""
    base = about.session_start_ns(read.database)
    base_ns = base or 0
    process: I64 = works.take("process").astype(np.int64)
    device = device_work(works, base_ns)
    plain_device = device.device
    device.device = apart(plain_device.astype(np.int64), process).astype(np.int32)
    spans = _operators_at(ranges, calls)
    called = host_work(calls, base_ns)
    called.external = spans
    ops, notes = host_work(ranges.ops, base_ns), host_work(ranges.annotations, base_ns)
    threads = read.threads.names()
    processes = {name: number for number, name in enumerate(dict.fromkeys(pid for pid, _ in threads))}
    owner = np.array([processes[pid] for pid, _ in threads], np.int64)
    notes, notices = renamed(notes, read.names, owner)
    parts: list[DeviceWork | HostWork] = [device, called, ops, notes]
    return Trace(
        meta=meta_of(read, identity, ranges, plain_device, base_ns),
        names=list(read.names),
        threads=threads,
        device=device,
        calls=called,
        ops=ops,
        annotations=notes,
        frames=host_work(Table(start_ns=np.int64, end_ns=np.int64, name=np.int32, thread=np.int32), 0),
        comm_args=list(read.comm_args),
        operators=ranges.operators(),
        start_ns=min((int(part.start_ns.min()) for part in parts if len(part.start_ns)), default=0),
        end_ns=max((int(part.end_ns.max()) for part in parts if len(part.end_ns)), default=0),
        events=read.events,
        notices=[*identity.notices, *notices, *_notices(read, ranges, base)],
    )


def _operators_at(ranges: Ranges, calls: Table) -> I64:
    """Return the number of the operator that made each call; -1 if none is recorded."""
    columns = {name: ranges.spans.take(name) for name in ranges.spans.names}
    start, thread = calls.view("start_ns"), calls.view("thread")
    if not len(columns["external"]):
        return np.full(len(start), -1, np.int64)
    nests = nests_of(columns["start_ns"], columns["end_ns"], columns["thread"], columns["external"])
    return innermost(nests, thread, start)


def _notices(read: Read, ranges: Ranges, base: int | None) -> list[about.Notice]:
    """Return the notices about missing and skipped parts of this file."""
    made: list[about.Notice] = []
    where = read.where
    if base is None:
        made.append(("clock-unknown", f"{where} does not say when its session began: its times count from 0"))
    if read.bad:
        made.append(("file-damaged", f"{where}: {read.bad} events could not be read and were left out"))
    if ranges.open:
        count = f"{ranges.open} NVTX {'range' if ranges.open == 1 else 'ranges'}"
        made.append(("ranges-open", f"{where}: {count} did not end while it was recorded"))
    graphs = WHOLE_GRAPH in read.names
    if graphs:
        text = f"{where} has CUDA graphs as a whole ({GRAPHS}): their kernels are not in it; record with"
        made.append(("graphs-whole", f"{text} --cuda-graph-trace=node"))
    missing = [name for name in (CALLS[0], RANGES) if name not in read.database.tables]
    if missing:
        made.append(("tables-missing", f"{where} has no table {' and no '.join(missing)}; {_RECORD}"))
    return made


def _calls_table() -> Table:
    """Return an empty table of CUDA calls."""
    wide = ("start_ns", "end_ns", "correlation")
    return Table(**dict.fromkeys(wide, np.int64), name=np.int32, thread=np.int32)


def _read_calls(read: Read, table: Table) -> None:
    """Add the calls that launch device work or wait for it."""
    database = read.database
    by_process = read.knows_processes()
    working = working_calls()
    for name in CALLS:
        named = texts_of(database, [(name, "nameId")], read.where)
        texts = {number: words.call(text) for number, text in named.items()}
        wanted = {number for number, text in texts.items() if working[text]}
        for chunk in database.rows(name, ("start", "end", "globalTid", "correlationId", "nameId")):
            start, end, thread, correlation, ids = columns_of(chunk)
            begun, ended, usable = times(start, end)
            chosen = usable & np.array([each in wanted or each not in texts for each in ids], np.bool_)
            read.count(usable, chosen)
            gtid = numbers(thread, 2**63)
            process = read.threads.process(gtid) if by_process else None
            columns: dict[str, Any] = {
                "start_ns": begun,
                "end_ns": ended,
                "correlation": correlations(correlation, process),
                "name": np.array([read.names[texts.get(each, "CUDA call")] for each in ids], np.int32),
                "thread": read.threads.thread(gtid),
            }
            table.add(**{column: values[chosen] for column, values in columns.items()})
