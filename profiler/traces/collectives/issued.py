"""Collectives that are known only from their calls on the host: when they were issued, not when they ran."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardtoll.profiler.traces.collectives.comms import BACKENDS, op_of
from shardtoll.profiler.traces.collectives.link import Linked
from shardtoll.profiler.traces.collectives.said import NOTHING, filled, said
from shardtoll.profiler.traces.collectives.steps import Steps
from shardtoll.profiler.traces.file.trace_columns import Trace

DEVICE_BACKENDS: Final = ("nccl", "hccl", "xccl", "rccl", "ucc")
"""Backends whose collectives run on devices."""
_PREFIXES: Final = tuple(f"{name}:" for name in DEVICE_BACKENDS)


def uses_device(trace: Trace) -> bool:
    """Whether the job computed on a device, so that a trace without device work is not complete."""
    meta = trace.meta
    if meta.device is not None or meta.devices is not None or len(trace.calls.start_ns):
        return True
    if any(name.startswith(_PREFIXES) for name in trace.names):
        return True
    # A job on CPUs may name a backend of devices in addition to gloo, or have one by default.
    on_cpu = any(name.startswith("gloo:") for name in trace.names)
    return not on_cpu and any(name in (meta.backend or "") for name in DEVICE_BACKENDS)


def issued(trace: Trace, steps: Steps) -> list[Linked]:
    """Return an untimed row for each collective that an annotation or operator of the host describes.

    Among calls inside each other the outermost is the collective; the inner ones add what they know.
    """
    calls = said(trace)
    rows: list[Linked] = []
    ends: dict[int, tuple[int, Linked]] = {}
    for place, comm in enumerate(calls.comm):
        name = trace.names[calls.name[place]]
        args = trace.comm_args[comm] if comm >= 0 else NOTHING
        op = op_of(args.name) or op_of(name)
        start_ns, thread = int(calls.start_ns[place]), int(calls.thread[place])
        until, outer = ends.get(thread, (start_ns, None))
        if outer is not None and start_ns < until:
            if op in (None, outer.op):
                outer.args = filled(outer.args, args)
            continue
        if op is None:
            continue
        owner = int(steps.at(np.array([start_ns]))[0])
        row = Linked(
            start_ns,
            start_ns,
            owner,
            calls.name[place],
            None,
            op,
            args,
            start_ns,
            thread,
            "span",
            timed=False,
        )
        row.label = name if name.startswith(BACKENDS) else None
        rows.append(row)
        ends[thread] = (int(calls.end_ns[place]), row)
    return rows
