"""The table of what the device computed: kernels added up by step, operator, inputs and phase."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shardtoll.ledger.records.event import DeviceOp
from shardtoll.ledger.records.record import PHASES
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.traces.file.op_shapes import Inputs, inputs_of
from shardtoll.profiler.traces.file.op_work import NOTHING_KNOWN, OpWork, has_rule, work_of
from shardtoll.profiler.traces.file.trace_columns import I64, KERNEL, OpKind
from shardtoll.profiler.traces.rank.causes import Work
from shardtoll.profiler.traces.rank.facts import Facts
from shardtoll.profiler.traces.rank.split import COMPUTE


def device_ops(facts: Facts, work: Work, rank: int) -> pa.Table:
    """Return the table; kernels of communication and those outside every step are not in it."""
    device = facts.trace.device
    rows = np.flatnonzero(
        (device.kind == KERNEL) & (facts.layer == COMPUTE) & (facts.owner != facts.steps.none)
    )
    if not len(rows):
        return to_table("device_ops", ())
    external = _externals(facts, rows)
    operators = facts.trace.operators
    kind = operators.at(external)
    phase = work.phase[rows].astype(np.int64)
    # Three numbers as one: columns of several are sorted ten times as slowly.
    kinds, phases = len(operators.kinds) + 1, len(PHASES)
    group = (facts.owner[rows] * kinds + kind + 1) * phases + phase
    keys, place = np.unique(group, return_inverse=True)
    owners, rest = np.divmod(keys, kinds * phases)
    device_ns = np.zeros(len(keys), np.int64)
    np.add.at(device_ns, place, device.end_ns[rows] - device.start_ns[rows])
    # Several kernels of one call have its id; what has none counts kernel by kernel.
    call = np.where(kind >= 0, external, -1 - np.arange(len(rows)))
    names, nth = np.unique(call, return_inverse=True)
    calls = np.bincount(np.unique(place * len(names) + nth) // len(names), minlength=len(keys))
    made = []
    work_of_kind: dict[int, tuple[str | None, str | None, OpWork]] = {-1: (None, None, NOTHING_KNOWN)}
    for owner, number, phase_number, took_ns, count in zip(
        owners.tolist(),
        (rest // phases - 1).tolist(),
        (rest % phases).tolist(),
        device_ns.tolist(),
        calls.tolist(),
        strict=True,
    ):
        if number not in work_of_kind:
            work_of_kind[number] = _told(operators.kinds[number])
        op, shapes, done = work_of_kind[number]
        made.append(
            DeviceOp(
                step=facts.steps.numbers[owner],
                rank=rank,
                op=op,
                phase=PHASES[phase_number],
                shapes=shapes,
                count=count,
                device_ns=took_ns,
                flops=_times(done.flops, count),
                moved_bytes=_times(done.moved_bytes, count),
            )
        )
    return to_table("device_ops", made)


def _externals(facts: Facts, rows: I64) -> I64:
    """Return the id of each kernel's operator: its own, else that of the call which launched it."""
    device, calls = facts.trace.device, facts.trace.calls
    external = device.external[rows]
    launch = facts.launch[rows]
    if not len(calls.external):
        return external
    return np.where((external <= 0) & (launch >= 0), calls.external[np.maximum(launch, 0)], external)


def _told(kind: OpKind) -> tuple[str | None, str | None, OpWork]:
    """Return name, shapes and work of one call."""
    inputs: Inputs | None = inputs_of(kind.dims, kind.types, kind.strides, kind.concrete)
    if inputs is None or not has_rule(kind.name):
        return kind.name, None, NOTHING_KNOWN
    return kind.name, inputs.text() or None, work_of(kind.name, inputs)


def _times(each: int | None, count: int) -> int | None:
    # Sizes of a damaged file may be absurd: what does not fit the table is unknown.
    whole = None if each is None else each * count
    return whole if whole is not None and whole < 2**62 else None
