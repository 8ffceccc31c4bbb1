"""All complete events of a trace as one Arrow table, for tools that do their own analysis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.choose import common_times, is_inexact, usable_times
from shardtoll.profiler.traces.file.columns import ROW_LIMIT, Table, check_rows, externals, numbers
from shardtoll.profiler.traces.file.event import Args
from shardtoll.profiler.traces.file.interned import Names
from shardtoll.profiler.traces.file.meta import WANTED, read_meta
from shardtoll.profiler.traces.file.read import calm
from shardtoll.profiler.traces.file.scan import Chunk, Scan
from shardtoll.profiler.traces.file.sources import TraceFile, opened
from shardtoll.profiler.traces.file.stream import Flow, pieces

_TEXTS: Final = ("cat", "name", "pid", "tid")
_NO_ARGS: Final = Args()


def read_events(file: TraceFile, *, row_limit: int = ROW_LIMIT) -> pa.Table:
    """Return every `X` event of a trace that has a category, in the order of the file.

    Columns: index (position among all events of the file); cat, name, pid, tid (dictionaries of texts); ts_ns
    and dur_ns (int64, `baseTimeNanoseconds` added); stream, correlation, external_id. A `cuda_sync` event
    also has wait_on_stream and wait_on_cuda_event_record_corr_id (int64, -1 if the event has none). Raises
    TraceError as `read_trace` does.
    """
    where = file.address
    texts = {name: Names(where) for name in _TEXTS}
    table = Table(
        index=np.int64,
        **dict.fromkeys(_TEXTS, np.int32),
        ts_ns=np.int64,
        dur_ns=np.int64,
        stream=np.int64,
        correlation=np.int64,
        external_id=np.int64,
        wait_on_stream=np.int64,
        wait_on_cuda_event_record_corr_id=np.int64,
    )
    seen = 0
    with calm(), opened(file) as source:
        scan = Scan(pieces(source, Flow(), where), where, WANTED)
        for chunk in scan.chunks():
            _add(table, texts, chunk, seen)
            seen += len(chunk.events)
            check_rows(table.rows, where, row_limit)
    if not table.rows:
        raise TraceError(f"{where} holds no events", "name a trace that torch.profiler exported")
    base_ns = read_meta(scan.metadata, where)[0].base_ns
    columns: dict[str, Any] = {}
    for name in table.names:
        column = table.take(name)
        if name in texts:
            columns[name] = pa.DictionaryArray.from_arrays(column, pa.array(texts[name], pa.string()))
        else:
            columns[name] = column + base_ns if name == "ts_ns" else column
    return pa.table(columns)


def _add(table: Table, texts: dict[str, Names], chunk: Chunk, seen: int) -> None:
    """Add the `X` events of a chunk whose times are usable numbers; `seen` events came before it."""
    places = _complete(chunk.events)
    kept = [chunk.events[place] for place in places]
    if not kept:
        return
    times = common_times(kept)
    if times is not None and times[2]:
        start_ns, end_ns, _ = times
    else:
        if any(is_inexact(event) for event in kept):
            events = chunk.exact()
            kept = [events[place] for place in places]
        usable, start_ns, end_ns = usable_times(kept)
        kept = [kept[place] for place in usable]
        places = [places[place] for place in usable]
        if not kept:
            return
    args = [event.args or _NO_ARGS for event in kept]
    table.add(
        index=[seen + place for place in places],
        **{name: [texts[name][_text(getattr(event, name))] for event in kept] for name in _TEXTS},
        ts_ns=start_ns,
        dur_ns=end_ns - start_ns,
        stream=numbers([arg.stream for arg in args]),
        correlation=numbers([arg.correlation for arg in args]),
        external_id=externals(args),
        wait_on_stream=numbers([arg.wait_stream for arg in args]),
        wait_on_cuda_event_record_corr_id=numbers([arg.wait_event for arg in args]),
    )


def _complete(events: list[Any]) -> list[int]:
    return [place for place, event in enumerate(events) if event.ph == "X" and event.cat is not None]


def _text(value: Any) -> str:
    return "" if value is None else str(value)
