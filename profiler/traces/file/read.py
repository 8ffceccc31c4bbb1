"""One trace file in, one `Trace` out: streamed, decoded as far as needed, in bounded memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.collect import Collector, device_work, host_work
from shardtoll.profiler.traces.file.columns import ROW_LIMIT
from shardtoll.profiler.traces.file.formats import HINT, Format, of_damage, of_events, of_object
from shardtoll.profiler.traces.file.meta import WANTED, fitted, has_device, read_meta
from shardtoll.profiler.traces.file.scan import Scan
from shardtoll.profiler.traces.file.sources import TraceFile, opened
from shardtoll.profiler.traces.file.stream import Flow, pieces
from shardtoll.profiler.traces.file.trace_columns import Trace

_THIS_CENTURY_NS = 10**18


def read_trace(file: TraceFile, *, row_limit: int = ROW_LIMIT) -> Trace:
    """Read one trace of any age, layout and compression.

    A file that breaks off gives its readable part, with a notice `file-cut`. A notice `file-damaged` counts
    events that could not be read. Raises TraceError, in one line, if nothing can be read or more than
    `row_limit` rows would be kept.
    """
    where = file.address
    flow = Flow()
    with calm(), opened(file) as source:
        scan = Scan(pieces(source, flow, where), where, WANTED)
        collector: Collector | None = None
        try:
            for chunk in scan.chunks():
                if collector is None:
                    collector = Collector(where, has_device=has_device(scan.metadata), row_limit=row_limit)
                collector.add(chunk)
                del chunk  # or it would be there until the next one is decoded
        except TraceError as error:
            if flow.cut is None or collector is not None:
                raise
            # Not empty, as it looks behind the decompression: nothing of it could be decompressed.
            raise TraceError(f"{where} {flow.cut} before the first whole event", HINT) from error
    cut = flow.cut or scan.cut
    if collector is None:
        nothing = _nothing(scan, cut)
        raise TraceError(f"{where} {nothing.what}", nothing.instead)
    trace = _trace(scan, collector, where)
    if cut is not None:
        trace.notices.append(("file-cut", f"{where} {cut}: {trace.events} events were read before that"))
        if "baseTimeNanoseconds" not in scan.metadata and trace.end_ns < _THIS_CENTURY_NS:
            text = f"{where} breaks off before it says from when its times count"
            trace.notices.append(("clock-unknown", text))
    bad = scan.bad + collector.chooser.bad
    kept = (trace.device, trace.calls, trace.ops, trace.annotations, trace.frames)
    if not any(len(part.start_ns) for part in kept):
        if bad:
            raise TraceError(f"{where} holds no usable event ({bad} could not be read)", HINT)
        other = of_events(scan.head, scan.names, collector.chooser.categories, trace.events)
        raise TraceError(f"{where} {other.what}", other.instead)
    if bad:
        trace.notices.append(("file-damaged", f"{where}: {bad} events could not be read and were left out"))
    return trace


def _trace(scan: Scan, collector: Collector, where: str) -> Trace:
    meta, notices = fitted(*read_meta(scan.metadata, where), collector.comm_args)
    base_ns = meta.base_ns
    device = device_work(collector.device, base_ns)
    hosts = [
        host_work(table, base_ns)
        for table in (collector.calls, collector.ops, collector.annotations, collector.frames)
    ]
    starts = [column for column in (device.start_ns, *(host.start_ns for host in hosts)) if len(column)]
    ends = [column for column in (device.end_ns, *(host.end_ns for host in hosts)) if len(column)]
    return Trace(
        meta=meta,
        names=list(collector.names),
        threads=[(str(pid), str(tid)) for pid, tid in collector.threads],
        device=device,
        calls=hosts[0],
        ops=hosts[1],
        annotations=hosts[2],
        frames=hosts[3],
        comm_args=list(collector.comm_args),
        operators=collector.operators.done(),
        start_ns=min((int(column.min()) for column in starts), default=0),
        end_ns=max((int(column.max()) for column in ends), default=0),
        events=collector.events,
        notices=notices,
    )


def _nothing(scan: Scan, cut: str | None) -> Format:
    """Say why a file gave no event, and what to do."""
    if cut is not None:
        return Format(f"{cut} before the first whole event")
    if scan.bad:
        return of_damage(scan.head, scan.bad)
    return Format("holds no events") if scan.found else of_object(scan.names)


@contextmanager
def calm() -> Iterator[None]:
    """Keep the garbage collector out while millions of plain objects come and go."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
