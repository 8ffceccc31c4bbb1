"""Shared facts of the parts of a rank's analysis: layers, owners and rows, worked out once."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from shardtoll.profiler.traces.collectives.gloo import spans
from shardtoll.profiler.traces.collectives.issued import issued, uses_device
from shardtoll.profiler.traces.collectives.kernels import KernelTable
from shardtoll.profiler.traces.collectives.launches import launches, owners, processes
from shardtoll.profiler.traces.collectives.link import Linked, Linker
from shardtoll.profiler.traces.collectives.stacks import merged
from shardtoll.profiler.traces.collectives.steps import Steps, find_steps, recorded
from shardtoll.profiler.traces.file.trace_columns import I64, KERNEL, Trace
from shardtoll.profiler.traces.rank.split import (
    COMM,
    COMPUTE,
    LOOKALIKE,
    MOVE,
    Busy,
    Gaps,
    Split,
    gaps,
    split,
)


class Facts(Struct, frozen=True):
    """One trace, worked out."""

    trace: Trace
    steps: Steps
    layer: I64
    """Layer of each piece of device work."""
    launch: I64
    """Row of the call that launched it; -1 if not recorded."""
    owner: I64
    """Place of the step that launched it."""
    rows: list[Linked]
    """Collectives in order of start."""
    split: Split
    has_device: bool
    blind: bool = False
    """Whether the job computed on a device without a record of it: its time is unknown."""


def work_out(trace: Trace, table: KernelTable) -> Facts:
    """Return the layers, steps and collectives of a trace and the split of its time."""
    device = trace.device
    steps = find_steps(trace)
    launch = launches(device, trace.calls, processes(trace))
    owner = owners(device, trace.calls, launch, steps)
    layer = layers_of(trace, table)
    has_device = len(layer) > 0
    blind = not has_device and uses_device(trace)
    if has_device:
        works = np.flatnonzero(layer == COMM)
        works = works[np.argsort(device.start_ns[works], kind="stable")]
        rows = Linker(trace, table).link(works.tolist(), launch[works].tolist(), owner[works].tolist())
        if not rows:
            rows = issued(trace, steps)
    else:
        rows = issued(trace, steps) if blind else spans(trace, steps)
    rows.sort(key=lambda row: (row.start_ns, row.end_ns))

    def busy(number: int) -> Busy:
        here = layer == number
        return Busy(device.start_ns[here], device.end_ns[here], owner[here])

    if has_device:
        layers = (busy(COMPUTE), row_times(rows), busy(LOOKALIKE), busy(MOVE))
    elif blind:
        whole = Busy(steps.start_ns, steps.end_ns, steps.place)
        layers = (busy(COMPUTE), row_times(rows), whole, busy(MOVE))
    else:
        layers = (host_compute(trace, steps), row_times(rows), busy(LOOKALIKE), busy(MOVE))
    between = _gaps(trace, launch, owner, steps) if has_device else None
    cut = split(layers, steps, *recorded(trace), between)
    return Facts(trace, steps, layer, launch, owner, rows, cut, has_device, blind)


def _gaps(trace: Trace, launch: I64, owner: I64, steps: Steps) -> Gaps:
    """Return the device's gaps; work whose launch was not recorded was launched before all of them."""
    device, calls = trace.device, trace.calls
    queued_ns = np.full(len(launch), np.iinfo(np.int64).min, np.int64)
    seen = launch >= 0
    queued_ns[seen] = calls.start_ns[launch[seen]]
    return gaps(device.start_ns, device.end_ns, queued_ns, owner, steps)


def layers_of(trace: Trace, table: KernelTable) -> I64:
    """Return the layer of each piece of device work, as `split` numbers them."""
    number = {"compute": COMPUTE, "communication": COMM, "lookalike": LOOKALIKE}
    kinds = np.zeros(len(trace.names), np.int64)
    kernels = trace.device.kind == KERNEL
    for name in np.unique(trace.device.name[kernels]).tolist():
        kinds[name] = number[table.classify(trace.names[name]).what]
    return np.where(kernels, kinds[trace.device.name] if len(kinds) else 0, MOVE)


def row_times(rows: list[Linked]) -> Busy:
    """Return the times of collectives in columns."""
    columns = ([row.start_ns for row in rows], [row.end_ns for row in rows], [row.owner for row in rows])
    return Busy(*(np.array(column, np.int64) for column in columns))


_WRAPPERS = ("c10d::", "record_param_comms", "autograd::engine", "gloo:", "nccl:", "_c10d_functional::wait")
"""Operators of a host-only trace that merely enclose others, hand work on or wait for it."""


def host_compute(trace: Trace, steps: Steps) -> Busy:
    """Return when operators ran on the training threads of a trace without a device.

    Training threads are those that run steps or autograd. Work belongs to the step it started in.
    """
    ops, names = trace.ops, trace.names
    autograd = np.array([name.startswith("autograd::engine") for name in names], np.bool_)
    plain = np.array([not name.startswith(_WRAPPERS) for name in names], np.bool_)
    marks = np.array([name.startswith("ProfilerStep") for name in names], np.bool_)
    if not len(ops.name):
        nothing = np.zeros(0, np.int64)
        return Busy(nothing, nothing, nothing)
    training = {*ops.thread[autograd[ops.name]].tolist()}
    if len(trace.annotations.name):
        training |= {*trace.annotations.thread[marks[trace.annotations.name]].tolist()}
    rows = plain[ops.name]
    if training:
        rows = rows & np.isin(ops.thread, list(training))
    owner = steps.at(ops.start_ns[rows])
    starts, ends, owners_ = [], [], []
    for place in np.unique(owner).tolist():
        here = owner == place
        start, end = merged(ops.start_ns[rows][here], ops.end_ns[rows][here])
        starts.append(start)
        ends.append(end)
        owners_.append(np.full(len(start), place, np.int64))
    if not starts:
        nothing = np.zeros(0, np.int64)
        return Busy(nothing, nothing, nothing)
    return Busy(np.concatenate(starts), np.concatenate(ends), np.concatenate(owners_))
