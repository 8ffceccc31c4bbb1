"""NVTX ranges of an export: NCCL's calls, operators that emit_nvtx wrote, and annotations of the user."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shardtoll.profiler.traces.file.collect_operators import MOST_KINDS
from shardtoll.profiler.traces.file.columns import Table, numbers
from shardtoll.profiler.traces.file.interned import telling_ops
from shardtoll.profiler.traces.file.trace_columns import I64, Operators, OpKind
from shardtoll.profiler.traces.nsys import words
from shardtoll.profiler.traces.nsys.columns import columns_of, times
from shardtoll.profiler.traces.nsys.nccl import Nccl
from shardtoll.profiler.traces.nsys.payload import Schemas
from shardtoll.profiler.traces.nsys.range_query import RANGES, payload_of, query, texts_by_number
from shardtoll.profiler.traces.nsys.state import Read

_OWN: Final = re.compile(r"p?nccl[A-Z]")
"""How NCCL's ranges begin; `nccl:all_reduce` is torch's."""
_PUSHED: Final = 59
_STARTED: Final = 60
_KINDS: Final = (None, _PUSHED, _STARTED, 70, 71)
"""Event types of ranges, those that nvtxt files brought in among them; versions without the column: None."""
_HOST: Final = {
    **dict.fromkeys(("start_ns", "end_ns", "external"), np.int64),
    **dict.fromkeys(("name", "thread", "comm"), np.int32),
}
_SPANS: Final = {**dict.fromkeys(("start_ns", "end_ns", "external"), np.int64), "thread": np.int32}


@dataclass(slots=True)
class Ranges:
    """Result of reading the ranges of one file."""

    has_device: bool
    annotations: Table = field(default_factory=lambda: Table(**_HOST))
    ops: Table = field(default_factory=lambda: Table(**_HOST))
    spans: Table = field(default_factory=lambda: Table(**_SPANS))
    """Every operator, also those that `ops` leaves out, numbered by `external` from 1."""
    nccl: Nccl = field(default_factory=Nccl)
    open: int = 0
    """Ranges that did not end while the session lasted."""
    _kinds: dict[str, int] = field(default_factory=dict)
    _kind: array[int] = field(default_factory=lambda: array("i"))

    def kind(self, name: str) -> int:
        """Return the number of the next operator, whose name is given."""
        number = self._kinds.get(name)
        if number is None:
            number = self._kinds.setdefault(name if len(self._kinds) < MOST_KINDS else "", len(self._kinds))
        self._kind.append(number)
        return len(self._kind)

    def operators(self) -> Operators:
        """Return all operators."""
        ids: I64 = np.arange(1, len(self._kind) + 1)
        return Operators(
            ids, np.frombuffer(self._kind, np.int32), tuple(OpKind(name) for name in self._kinds)
        )


def read_ranges(read: Read, ranges: Ranges) -> None:
    """Add all ranges of the file."""
    database = read.database
    if not database.has(RANGES, "start", "end"):
        return
    schemas = Schemas(database)
    text_of = texts_by_number(read)
    telling = telling_ops()
    for chunk in database.select(query(read)):
        start, end, kind, tid, *texts, binary, json_text, json_named = columns_of(chunk)
        begun, ended, usable = times(start, end)
        wanted = np.array([each in _KINDS for each in kind], np.bool_)
        unended = np.array([each is None for each in end], np.bool_)
        ranges.open += int((wanted & unended).sum())
        read.count(usable | ~wanted | unended, usable & wanted)
        gtid = numbers(tid, 2**63)
        process, thread = read.threads.process(gtid), read.threads.thread(gtid)
        notes, ops, spans = _Rows(), _Rows(), _Rows()
        for row in np.flatnonzero(usable & wanted).tolist():
            text = text_of(texts[0][row], texts[1][row], texts[2][row])
            if text is None:
                continue
            if _OWN.match(text):
                said = payload_of(
                    schemas, binary[row], text_of(json_text[row], json_named[row], json_named[row])
                )
                place = (int(process[row]), int(thread[row]), int(begun[row]), int(ended[row]))
                ranges.nccl.add(text, *place, said)
                continue
            name, is_operator = words.operator(text)
            if not is_operator:
                notes.add(row, read.names[name], -1)
                continue
            external = ranges.kind(name)
            spans.add(row, -1, external)
            if not ranges.has_device or telling[name]:
                ops.add(row, read.names[name], external)
        for table, rows in ((ranges.annotations, notes), (ranges.ops, ops), (ranges.spans, spans)):
            columns: dict[str, Any] = {
                "start_ns": begun[rows.rows],
                "end_ns": ended[rows.rows],
                "external": rows.externals,
                "thread": thread[rows.rows],
            }
            if table is not ranges.spans:
                columns |= {"name": rows.names, "comm": [-1] * len(rows.rows)}
            table.add(**columns)


@dataclass(slots=True)
class _Rows:
    """Rows of a chunk that go into one table."""

    rows: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    externals: list[int] = field(default_factory=list)

    def add(self, row: int, name: int, external: int) -> None:
        self.rows.append(row)
        self.names.append(name)
        self.externals.append(external)


def add_calls(read: Read, ranges: Ranges, world_size: int | None) -> None:
    """Add NCCL's calls as operators that describe a collective."""
    calls = ranges.nccl.described(world_size)
    ranges.ops.add(
        start_ns=[call.start_ns for call in calls],
        end_ns=[call.end_ns for call in calls],
        external=[-1] * len(calls),
        name=[read.names["record_param_comms"]] * len(calls) if calls else [],
        thread=[call.thread for call in calls],
        comm=[read.comm(call.args) for call in calls],
    )
