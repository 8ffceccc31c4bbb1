"""Ledgers of real traces, held to the brute-force reading of the same file with the standard library."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from shardtoll.ledger.records.stall import IDLE_KINDS
from shardtoll.profiler.live.cause.accounting import Span, share_exposed, subtract, total_ns, union
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.facts import work_out
from shardtoll.profiler.traces.rank.rank import rank_ledger

TABLE = load_table()
DLRM = "param_dlrm_v100_8ranks/worker{}_step_12.*"
FILES = (
    "hta_nccl_data_rank0of2.json.gz",
    "hta_negative_queue_rank0of16.json.gz",
    "hta_sampled_rank0of128.json.gz",
    "hta_sampled_rank1of128.json.gz",
    "tracelens_b200_eager_rank0of8.json.gz",
    "tracelens_mi300_resnet_rank0of8.json.gz",
    *(DLRM.format(rank) for rank in range(8)),
)


@pytest.fixture(params=FILES)
def path(request, traces):
    return one(traces, request.param)


def one(folder: Path, name: str) -> Path:
    (found,) = folder.glob(name)
    return found


@cache
def told(path):
    trace = read_trace(find([str(path)])[0])
    return trace, rank_ledger(trace, TABLE)


@cache
def plain(path):
    """(communication, compute, moves) as intervals in ns: an independent, slow and simple reading."""
    data = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    base = int(data.get("baseTimeNanoseconds") or 0)
    found = ([], [], [])
    for event in data["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        start = base + round(event["ts"] * 1000)
        is_comm = event["name"].startswith("nccl") or "multimem_all_reduce" in event["name"]
        place = 2 if event["cat"] != "kernel" else 0 if is_comm else 1
        found[place].append((start, start + round(event["dur"] * 1000)))
    return found


def test_exposed_communication_of_the_rank_is_exact(path):
    comm, compute, _ = plain(path)
    exposed_ns = total_ns(subtract(union(comm), union(compute)))
    table = told(path)[1].tables["collectives"]
    assert table.num_rows == len(comm)
    assert sum(table.column("exposed_ns").to_pylist()) == exposed_ns


def test_each_collectives_share_equals_the_slow_sweep(path):
    comm, compute, _ = plain(path)
    rows = told(path)[1].tables["collectives"].to_pylist()
    epoch = told(path)[1].run.epoch_ns
    spans = [
        Span(at, row["start_ns"] + epoch, row["start_ns"] + epoch + row["duration_ns"])
        for at, row in enumerate(rows)
    ]
    shares, ownerless = share_exposed(subtract(union(comm), union(compute)), spans)
    assert ownerless == 0
    assert [row["exposed_ns"] for row in rows] == [shares.get(at, 0) for at in range(len(rows))]


def test_busy_time_is_conserved(path):
    """Steps and what lies outside them hold every busy instant of the device once."""
    comm, compute, moves = plain(path)
    parts = work_out(told(path)[0], TABLE).split.parts_ns.sum(axis=0).tolist()
    busy = union(comm + compute)
    assert parts[0] == total_ns(union(compute))
    assert parts[2] == 0
    assert parts[3] == total_ns(subtract(union(moves), busy))


def test_rows_add_up_to_steps_and_stalls_to_idle(path):
    tables = {name: table.to_pylist() for name, table in told(path)[1].tables.items()}
    for step in tables["steps"]:
        mine = [row for row in tables["collectives"] if row["step"] == step["step"]]
        assert sum(row["exposed_ns"] for row in mine) == step["exposed_comm_ns"]
        stalls = [row for row in tables["stalls"] if row["step"] == step["step"]]
        assert sum(row["lost_ns"] for row in stalls if row["kind"] in IDLE_KINDS) == step["idle_ns"]
        assert sum(row["lost_ns"] for row in stalls if row["kind"] == "copy") == step["exposed_copy_ns"]
        parts = [
            step[f"{name}_ns"] for name in ("compute", "exposed_comm", "exposed_copy", "idle", "unattributed")
        ]
        assert sum(parts) == step["duration_ns"]
    for lead in tables["leadups"]:
        parts = [lead[f"{name}_ns"] for name in ("compute", "comm", "copy", "data", "sync", "host")]
        assert sum(parts) == tables["collectives"][lead["index"]]["start_ns"] - lead["since_ns"]


@pytest.mark.parametrize(
    ("name", "how", "ops", "sizes"),
    [
        (FILES[0], {"args": 21}, {"all_reduce": 15, "broadcast": 6}, 21),
        (FILES[1], {"launch": 75, "name": 5},
         {"all_to_all": 45, "all_gather": 10, "reduce_scatter": 10, "all_reduce": 10, "unknown": 5}, 75),
        (FILES[2], {"launch": 10}, {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}, 10),
        (FILES[3], {"launch": 10}, {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}, 10),
        (FILES[4], {"args": 1, "name": 73}, {"all_reduce": 73, "all_gather": 1}, 1),
        (FILES[5], {"args": 12, "name": 5}, {"broadcast": 6, "all_reduce": 6, "unknown": 5}, 12),
        *((DLRM.format(rank), {"launch": 8}, {"all_to_all": 5, "all_reduce": 3}, 8) for rank in range(8)),
    ],
)  # fmt: skip
def test_how_kernels_were_linked(traces, name, how, ops, sizes):
    trace, ledger = told(one(traces, name))
    assert Counter(row.how for row in work_out(trace, TABLE).rows) == how
    rows = ledger.tables["collectives"].to_pylist()
    assert Counter(row["op"] for row in rows) == ops
    assert sum(row["message_bytes"] is not None for row in rows) == sizes


@pytest.mark.parametrize(
    ("name", "by_external", "by_launch"),
    [(FILES[0], 21, 21), (FILES[4], 1, 1), (FILES[5], 12, 12), (FILES[1], 0, 75)],
)
def test_later_sources_alone_find_the_same(traces, name, by_external, by_launch):
    """`External id`, and what is around the launch, each name it without the kernel's own args."""
    trace, ledger = told(one(traces, name))
    bare = dataclasses.replace(trace.device, comm=np.full_like(trace.device.comm, -1))
    external = dataclasses.replace(trace, device=bare)
    lost = dataclasses.replace(bare, external=np.full_like(bare.external, -1))
    launch = dataclasses.replace(trace, device=lost)
    ops = [row["op"] for row in ledger.tables["collectives"].to_pylist()]
    sizes = ledger.tables["collectives"].column("message_bytes").to_pylist()
    for changed, how, count in ((external, "external", by_external), (launch, "launch", by_launch)):
        assert Counter(row.how for row in work_out(changed, TABLE).rows)[how] == count
        again = rank_ledger(changed, TABLE).tables["collectives"].to_pylist()
        assert [row["op"] for row in again] == ops
        assert [row["message_bytes"] for row in again] == sizes


def test_dlrm_ranks_agree_on_ops_and_sizes(traces):
    jobs = [told(one(traces, DLRM.format(rank)))[1].tables["collectives"].to_pylist() for rank in range(8)]
    assert (
        len(
            {
                tuple((row["op"], row["message_bytes"]) for row in rows if row["op"] == "all_reduce")
                for rows in jobs
            }
        )
        == 1
    )
    assert {row["group"] for rows in jobs for row in rows} == {"default"}
    assert {row["phase"] for rows in jobs for row in rows} == {"forward", "backward"}


def test_causes_on_the_amd_trace(traces):
    tables = told(one(traces, FILES[5]))[1].tables
    rows = [row for row in tables["collectives"].to_pylist() if row["op"] != "unknown"]
    assert {(row["op"], row["phase"], row["caused_by_op"]) for row in rows} == {
        ("all_reduce", "backward", "DistributedDataParallel.reducer"),
        ("broadcast", "forward", "DistributedDataParallel.buffers"),
    }
    assert {row["source"] for row in rows if row["op"] == "broadcast"} == {"train_ddp.py:82 (train_step)"}
    again = [row for row in tables["stalls"].to_pylist() if row["kind"] == "recompute"]
    lost = {step: sum(row["lost_ns"] for row in again if row["step"] == step) for step in (15, 16, 17)}
    assert {row["step"] for row in again} == set(lost)
    assert min(lost.values()) > 500_000
    assert {"Conv2d", "BatchNorm2d"} <= {str(row["module"]).rpartition("_")[0] for row in again}
