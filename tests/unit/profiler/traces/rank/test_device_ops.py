"""Kernels added up by the operator that launched them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardtoll.ledger import DeviceOp, Ledger
from shardtoll.ledger.tables.tables import to_records
from shardtoll.profiler.traces import read_traces

DIMS = {
    "Input Dims": [[4, 8], [8, 2]],
    "Input type": ["c10::BFloat16"] * 2,
    "Input Strides": [[8, 1], [2, 1]],
}
ADD = {"Input Dims": [[4, 2], [4, 2]], "Input type": ["float", "float"], "Input Strides": [[2, 1], [0, 0]]}


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(
    number: int, op: str, ts: float, kernels: list[tuple[float, float]], **args: Any
) -> list[dict[str, Any]]:
    """An operator at `ts`, and its kernels as (start, duration), all in us."""
    made = [event("cpu_op", op, ts, 5, **{"External id": number}, **args)]
    for at, (start, took) in enumerate(kernels):
        link = {"correlation": 100 * number + at, "External id": number}
        made.append(event("cuda_runtime", "cudaLaunchKernel", ts + 1 + at, 1, **link))
        made.append(event("kernel", f"kernel{number}", start, took, 7, stream=7, device=0, **link))
    return made


def read(folder: Path, events: list[dict[str, Any]], name: str = "rank0.json") -> Ledger:
    trace = {
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "traceEvents": events,
    }
    path = folder / name
    path.write_text(json.dumps(trace))
    return read_traces([str(path)], cache=False, jobs=1)[0].ledger


def rows(ledger: Ledger) -> list[DeviceOp]:
    return sorted(to_records("device_ops", ledger.tables["device_ops"]), key=lambda row: -row.device_ns)


def test_kernels_go_to_the_operator_that_launched_them(tmp_path):
    events = [
        *launched(1, "aten::mm", 10, [(20, 30), (60, 10)], **DIMS),
        *launched(2, "aten::mm", 20, [(80, 40)], **DIMS),
        *launched(3, "aten::add", 30, [(130, 7)], **ADD),
        event("kernel", "nobody's", 140, 3, 7, stream=7, device=0, correlation=9999),
    ]
    ledger = read(tmp_path, events)
    mm, add, unknown = rows(ledger)
    assert (mm.op, mm.shapes, mm.count, mm.device_ns) == ("aten::mm", "bf16[4,8] bf16[8,2]", 2, 80_000)
    assert (mm.flops, mm.moved_bytes) == (2 * 2 * 4 * 8 * 2, 2 * 2 * (32 + 16 + 8))
    assert (add.op, add.count, add.flops, add.moved_bytes) == ("aten::add", 1, None, 32 + 4)
    assert (unknown.op, unknown.shapes, unknown.count, unknown.device_ns) == (None, None, 1, 3_000)
    (step,) = to_records("steps", ledger.tables["steps"])
    assert sum(row.device_ns for row in (mm, add, unknown)) == step.compute_ns


def test_an_id_on_the_launch_alone_is_enough(tmp_path):
    events = launched(1, "aten::mm", 10, [(20, 30)], **DIMS)
    del events[2]["args"]["External id"]
    (row,) = rows(read(tmp_path, events))
    assert row.op == "aten::mm"


def test_communication_is_none_of_it(tmp_path):
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = launched(1, "aten::mm", 10, [(20, 30)], **DIMS)
    events.append(event("kernel", name, 60, 9, 8, stream=8, device=0, correlation=5))
    (row,) = rows(read(tmp_path, events))
    assert row.device_ns == 30_000


def test_without_recorded_shapes_the_work_is_unknown(tmp_path):
    (row,) = rows(read(tmp_path, launched(1, "aten::mm", 10, [(20, 30)])))
    assert (row.op, row.shapes, row.flops, row.moved_bytes) == ("aten::mm", None, None, None)


@pytest.mark.parametrize("number", [-1, 0, "x", 2**63, 1.5, None])
def test_odd_ids_are_no_operators(tmp_path, number):
    events = launched(1, "aten::mm", 10, [(20, 30)], **DIMS)
    for each in events:
        each["args"]["External id"] = number
    (row,) = rows(read(tmp_path, events))
    assert row.op is None


def test_absurd_sizes_are_unknown(tmp_path):
    huge = {**DIMS, "Input Dims": [[2**40, 2**9], [2**9, 2**40]], "Input Strides": [[1, 1], [1, 1]]}
    (row,) = rows(read(tmp_path, launched(1, "aten::mm", 10, [(20, 30)], **huge)))
    assert row.flops is None
