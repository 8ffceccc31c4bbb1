"""From chunks of events to the columns of a `Trace`: only what the analysis of a rank asks for is kept."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.file.choose import CALLS, DEVICE_KINDS, FRAMES, MTIA, OPS, Chooser, Rows
from shardtoll.profiler.traces.file.collect_operators import OperatorCollector
from shardtoll.profiler.traces.file.columns import ROW_LIMIT, Table, check_rows, externals, numbers
from shardtoll.profiler.traces.file.commargs import comm_args
from shardtoll.profiler.traces.file.event import Args
from shardtoll.profiler.traces.file.interned import Names, Numbers, telling_ops
from shardtoll.profiler.traces.file.scan import Chunk
from shardtoll.profiler.traces.file.trace_columns import COPY, I64, CommArgs, DeviceWork, HostWork

_BACKENDS: Final = ("nccl:", "gloo:", "record_param_comms", "rccl:", "mpi:", "ucc:", "xccl:", "hccl:")
_COMM_NAMES: Final = (*_BACKENDS, "c10d::")
_NO_ARGS: Final = Args()
_I32_LIMIT: Final = 2**31
_TIMES: Final = {"start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "thread": np.int32}
_HOST: Final = {**_TIMES, "external": np.int64, "comm": np.int32}


class Collector:
    """Takes chunks, keeps rows, and hands them out as columns once all is read."""

    def __init__(self, where: str, *, has_device: bool = False, row_limit: int = ROW_LIMIT) -> None:
        self.names = Names(where)
        self.threads = Numbers()
        """(process, thread) -> number."""
        self.comm_args: dict[CommArgs, int] = {}
        self.events = 0
        """Events seen, kept or not."""
        self.chooser = Chooser(has_device)
        self.operators = OperatorCollector()
        self._where = where
        self._row_limit = row_limit
        self._exact = False
        self._filtered = has_device
        self.device = Table(
            **{name: _TIMES[name] for name in ("start_ns", "end_ns", "name")},
            kind=np.int8,
            device=np.int32,
            stream=np.int32,
            **dict.fromkeys(("correlation", "external", "bytes"), np.int64),
            comm=np.int32,
        )
        self.calls = Table(**_TIMES, correlation=np.int64, external=np.int64)
        self.ops = Table(**_HOST)
        self.annotations = Table(**_HOST)
        self.frames = Table(**_TIMES)

    def add(self, chunk: Chunk) -> None:
        """Keep what matters of a chunk. Raises TraceError past the limits on rows and names."""
        self.events += len(chunk.events)
        kept = None if self._exact else self.chooser.choose(chunk.events, exact=False)
        if kept is None:
            self._exact = True
            kept = self.chooser.choose(chunk.exact(), exact=True) or []
        if self.chooser.has_device and not self._filtered:
            self._filtered = True
            telling = telling_ops()
            self.ops.keep("name", np.array([telling[name] for name in self.names] or [False]))
        for rows in kept:
            self._keep(rows)
        self.operators.add(self.chooser.operators)
        tables = (self.device, self.calls, self.ops, self.annotations, self.frames)
        check_rows(sum(table.rows for table in tables) + len(self.chooser.open), self._where, self._row_limit)

    def _keep(self, rows: Rows) -> None:
        names = self.names
        common = {
            "start_ns": rows.start_ns,
            "end_ns": rows.end_ns,
            "name": [names[event.name or ""] for event in rows.events],
        }
        kind = DEVICE_KINDS.get(rows.category)
        if kind is not None:
            self._keep_device(rows, kind, common)
            return
        threads = self.threads
        common["thread"] = [threads[event.pid, event.tid] for event in rows.events]
        if rows.category in FRAMES:
            self.frames.add(**common)
            return
        args = [event.args or _NO_ARGS for event in rows.events]
        common["external"] = externals(args)
        if rows.category in CALLS:
            self.calls.add(**common, correlation=numbers([arg.correlation for arg in args]))
            return
        table = self.ops if rows.category in OPS else self.annotations
        comm = [
            self._comm(event.args)
            if event.args is not None
            and (event.args.collective is not None or (event.name or "").startswith(_COMM_NAMES))
            else -1
            for event in rows.events
        ]
        table.add(**common, comm=comm)

    def _keep_device(self, rows: Rows, kind: int, common: dict[str, Any]) -> None:
        events = rows.events
        args = [event.args or _NO_ARGS for event in events]
        device = [arg.device for arg in args]
        if None in set(device):
            device = [
                event.pid if arg.device is None else arg.device
                for event, arg in zip(events, args, strict=True)
            ]
        stream = [arg.stream for arg in args]
        if None in set(stream):
            stream = [
                event.tid if arg.stream is None else arg.stream
                for event, arg in zip(events, args, strict=True)
            ]
        kinds = np.full(len(events), kind, np.int8)
        if rows.category == MTIA:
            kinds[[event.name == "dma_request" for event in events]] = COPY
        self.device.add(
            **common,
            kind=kinds,
            device=numbers(device, _I32_LIMIT),
            stream=numbers(stream, _I32_LIMIT),
            correlation=numbers([arg.correlation for arg in args]),
            external=externals(args),
            bytes=numbers([arg.bytes if arg.bytes is not None else arg.size for arg in args]),
            comm=[-1 if arg.collective is None else self._comm(arg) for arg in args],
        )

    def _comm(self, args: Args) -> int:
        described = comm_args(args)
        return self.comm_args.setdefault(described, len(self.comm_args))


def device_work(table: Table, base_ns: int) -> DeviceWork:
    """Return the columns of device work; the table is used up."""
    return DeviceWork(
        start_ns=_shifted(table, "start_ns", base_ns),
        end_ns=_shifted(table, "end_ns", base_ns),
        **{
            name: table.take(name)
            for name in ("name", "kind", "device", "stream", "correlation", "external", "bytes", "comm")
        },
    )


def host_work(table: Table, base_ns: int) -> HostWork:
    """Return the columns of host work; columns the table does not have are all -1, in no memory."""
    rows = table.rows
    missing: dict[str, npt.NDArray[Any]] = {
        "correlation": np.broadcast_to(np.int64(-1), rows),
        "external": np.broadcast_to(np.int64(-1), rows),
        "comm": np.broadcast_to(np.int32(-1), rows),
    }
    return HostWork(
        start_ns=_shifted(table, "start_ns", base_ns),
        end_ns=_shifted(table, "end_ns", base_ns),
        name=table.take("name"),
        thread=table.take("thread"),
        **{name: table.take(name) if table.has(name) else column for name, column in missing.items()},
    )


def _shifted(table: Table, name: str, base_ns: int) -> I64:
    column: I64 = table.take(name)
    column += base_ns
    return column
