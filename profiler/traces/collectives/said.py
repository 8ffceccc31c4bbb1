"""Events on the host that describe a collective, and how what they say is put together."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.profiler.traces.collectives.comms import BACKENDS
from shardtoll.profiler.traces.file.trace_columns import I32, I64, CommArgs, HostWork, Trace

NOTHING: Final = CommArgs()
_FIELDS: Final = tuple(item.name for item in fields(CommArgs))


class Said(Struct, frozen=True):
    """Events on the host that describe a collective, in order of start."""

    start_ns: I64
    end_ns: I64
    thread: I32
    external: list[int]
    comm: list[int]
    name: list[int]


def said(trace: Trace) -> Said:
    """Return operators and annotations that describe a collective."""
    wanted = np.array(
        [name.startswith(BACKENDS) or name == "record_param_comms" for name in trace.names], bool
    )
    parts: list[tuple[HostWork, I64]] = []
    for work in (trace.ops, trace.annotations):
        named = wanted[work.name] if len(work.name) else np.zeros(0, bool)
        parts.append((work, np.flatnonzero(named | (work.comm >= 0) & ~_requests(trace, work))))
    columns = {
        key: np.concatenate([getattr(work, key)[rows] for work, rows in parts])
        for key in ("start_ns", "end_ns", "thread", "external", "comm", "name")
    }
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    sorted_columns = {key: column[order] for key, column in columns.items()}
    lists = {key: sorted_columns[key].tolist() for key in ("external", "comm", "name")}
    return Said(sorted_columns["start_ns"], sorted_columns["end_ns"], sorted_columns["thread"], **lists)


def _requests(trace: Trace, work: HostWork) -> npt.NDArray[np.bool_]:
    """Return which rows ask for a collective: they have its shapes, and do not say what it is."""
    asks = np.array([*(name.startswith("c10d::") for name in trace.names), False], bool)
    named = np.array([*(args.name is not None for args in trace.comm_args), False], bool)
    requests: npt.NDArray[np.bool_] = asks[work.name] & ~named[work.comm]
    return requests


def filled(args: CommArgs, more: CommArgs) -> CommArgs:
    """Return `args` with what it leaves open taken from `more`."""
    if args is NOTHING:
        return more
    missing = {name: getattr(more, name) for name in _FIELDS if getattr(args, name) is None}
    return replace(args, **missing)


def added(args: CommArgs, more: CommArgs) -> CommArgs:
    """Return args of two coalesced collectives as one: sizes added, unknown if one is unknown."""

    def total(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return replace(
        args,
        in_elements=total(args.in_elements, more.in_elements),
        out_elements=total(args.out_elements, more.out_elements),
        share_bytes=total(args.share_bytes, more.share_bytes),
        whole_bytes=total(args.whole_bytes, more.whole_bytes),
        dims=None if args.dims is None or more.dims is None else (*args.dims, *more.dims),
        types=None if args.types is None or more.types is None else (*args.types, *more.types),
    )
