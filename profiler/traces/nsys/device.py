"""Kernels, copies and memory sets of an export."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardtoll.profiler.traces.file.columns import Table, numbers
from shardtoll.profiler.traces.file.trace_columns import COPY, I64, KERNEL, SET, CommArgs
from shardtoll.profiler.traces.nsys import words
from shardtoll.profiler.traces.nsys.columns import columns_of, correlations, times
from shardtoll.profiler.traces.nsys.database import Database
from shardtoll.profiler.traces.nsys.state import COPIES, GRAPHS, KERNELS, SETS, Read
from shardtoll.profiler.traces.nsys.strings import texts_of

WHOLE_GRAPH: Final = "CUDA graph (whole)"
"""Name of the work of graphs whose kernels were not recorded one by one."""
NAMELESS: Final = "kernel without a name"

_NAMES: Final = ("demangledName", "shortName", "mangledName")
_WORK: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_DIRECTIONS: Final = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
"""`CUpti_ActivityMemcpyKind`."""
_I32_LIMIT: Final = 2**31


def device_table() -> Table:
    """Return an empty table of device work; `device` is the number within its process, before `apart`."""
    wide = ("start_ns", "end_ns", "correlation", "external", "bytes")
    narrow = ("name", "device", "stream", "comm", "process")
    return Table(**dict.fromkeys(wide, np.int64), **dict.fromkeys(narrow, np.int32), kind=np.int8)


def read_device(read: Read, table: Table) -> None:
    """Add all device work of the file to the table."""
    database = read.database
    by_process = read.knows_processes()
    name = next((each for each in _NAMES if database.has(KERNELS, each)), _NAMES[0])
    texts = texts_of(database, [(KERNELS, name)], read.where)
    for chunk in database.rows(KERNELS, (*_WORK, name)):
        *work, ids = columns_of(chunk)
        shown = [each if isinstance(each, str) else texts.get(each, NAMELESS) for each in ids]
        _add(read, table, KERNEL, work, shown, None, by_process)
    kinds = _labels(database, "ENUM_CUDA_MEM_KIND")
    for chunk in database.rows(COPIES, (*_WORK, "copyKind", "srcKind", "dstKind", "bytes")):
        *work, way, source, target, size = columns_of(chunk)
        shown = [_copy(*each, kinds) for each in zip(way, source, target, strict=True)]
        _add(read, table, COPY, work, shown, size, by_process)
    for chunk in database.rows(SETS, (*_WORK, "bytes")):
        *work, size = columns_of(chunk)
        _add(read, table, SET, work, ["Memset (Device)"] * len(size), size, by_process)
    for chunk in database.rows(GRAPHS, _WORK):
        work = columns_of(chunk)
        _add(read, table, KERNEL, work, [WHOLE_GRAPH] * len(chunk), None, by_process)


def _add(
    read: Read,
    table: Table,
    kind: int,
    work: list[list[Any]],
    shown: list[str],
    size: list[Any] | None,
    by_process: bool,
) -> None:
    start, end, device, stream, correlation, process_ids = work
    begun, ended, usable = times(start, end)
    read.count(usable, usable)
    process: I64 = np.zeros(len(start), np.int64)
    if by_process:
        process = read.threads.process(numbers(process_ids, 2**63))
    types = [words.kernel_type(name) if kind == KERNEL else None for name in shown]
    columns: dict[str, Any] = {
        "start_ns": begun,
        "end_ns": ended,
        "name": np.array([read.names[name] for name in shown], np.int32),
        "device": numbers(device, _I32_LIMIT),
        "stream": numbers(stream, _I32_LIMIT),
        "correlation": correlations(correlation, process if by_process else None),
        "external": np.full(len(start), -1),
        "bytes": np.full(len(start), -1) if size is None else numbers(size),
        "comm": [-1 if each is None else read.comm(CommArgs(dtype=each)) for each in types],
        "process": process,
        "kind": np.full(len(start), kind, np.int8),
    }
    table.add(**{name: np.asarray(column)[usable] for name, column in columns.items()})


def _labels(database: Database, table: str) -> dict[int, str]:
    """Return what a version's own table calls its numbers."""
    rows = (row for chunk in database.rows(table, ("id", "label"), most=1000) for row in chunk)
    return {number: label for number, label in rows if isinstance(number, int) and isinstance(label, str)}


def _copy(way: Any, source: Any, target: Any, kinds: dict[int, str]) -> str:
    """Return a copy's name as torch.profiler writes it: `Memcpy HtoD (Pinned -> Device)`."""
    direction = _DIRECTIONS.get(way, "unknown")
    sides = [kinds.get(side) for side in (source, target)]
    named = [side[:40] for side in sides if side is not None]
    return f"Memcpy {direction} ({named[0]} -> {named[1]})" if len(named) == 2 else f"Memcpy {direction}"


def apart(device: I64, process: I64) -> I64:
    """Return a number for each device; processes that each call theirs 0 get different ones."""
    pairs = np.stack([process, device], axis=1)
    different, place = np.unique(pairs, axis=0, return_inverse=True)
    ids = different[:, 1]
    if len(np.unique(ids)) == len(ids):
        return device
    return place.reshape(-1)
