"""CUDA calls of an export: those that launch device work or wait for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardtoll.profiler.traces.file.columns import Table, numbers
from shardtoll.profiler.traces.file.interned import working_calls
from shardtoll.profiler.traces.nsys import words
from shardtoll.profiler.traces.nsys.columns import columns_of, correlations, times
from shardtoll.profiler.traces.nsys.state import CALLS, Read
from shardtoll.profiler.traces.nsys.strings import texts_of


def calls_table() -> Table:
    """Return an empty table of CUDA calls."""
    wide = ("start_ns", "end_ns", "correlation")
    return Table(**dict.fromkeys(wide, np.int64), name=np.int32, thread=np.int32)


def read_calls(read: Read, table: Table) -> None:
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
