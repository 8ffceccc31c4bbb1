from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from shardtoll.analyzers import run as analyze
from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.collectives.group_of import mesh_dim
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.file.trace_columns import CommArgs, GroupInfo
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, SEND_RECV, Build

TABLE = load_table()
ROOT = Path(__file__).resolve().parents[5]
MESH = GroupInfo("7", (0, 2), 2, "mesh_tp")
WORLD = GroupInfo("0", (0, 1, 2, 3), 4, "default_pg")
FULL = CommArgs(
    name="_allgather_base",
    dtype="BFloat16",
    in_elements=10,
    out_elements=20,
    group="7",
    group_size=2,
    ranks=(0, 2),
    group_description="mesh_tp",
    seq=41,
)


def ledger(build):
    return rank_ledger(build.trace(), TABLE)


def rows(build, table="collectives"):
    return ledger(build).tables[table].to_pylist()


def notices(build):
    return {row["kind"]: row["text"] for row in rows(build, "notices")}


def test_a_row_of_the_newest_schema():
    build = (
        Build(world=4, groups=(WORLD, MESH)).note("ProfilerStep#5", 0, 100).op("c10d::_allgather_base_", 4, 9)
    )
    made = ledger(
        build.work(ALL_REDUCE.replace("AllReduce", "AllGather"), 20, 50, launch=5, args=FULL, stream=13)
    )
    (row,) = made.tables["collectives"].to_pylist()
    assert {key: value for key, value in row.items() if value is not None and key != "kernel"} == {
        "step": 5, "rank": 0, "group": "7", "group_size": 2, "mesh_dim": "tp", "seq": 41, "op": "all_gather",
        "dtype": "bfloat16", "message_bytes": 40, "wire_bytes": 20, "issue_ns": 4, "start_ns": 20,
        "duration_ns": 30, "exposed_ns": 30, "phase": "other", "stream": 13,
        "caused_by_op": "c10d::_allgather_base_",
    }  # fmt: skip
    assert made.run.mesh == {"tp": 2}
    assert [(group.name, group.ranks, group.mesh_dim) for group in made.groups] == [
        ("0", (0, 1, 2, 3), None), ("7", (0, 2), "tp"),
    ]  # fmt: skip
    assert (made.run.source, made.run.ranks_seen, made.run.world_size) == ("trace", (0,), 4)
    assert made.tables["notices"].num_rows == 0


def test_old_traces_name_no_group_and_that_is_said():
    build = (
        Build(world=4)
        .note("ProfilerStep#0", 0, 100)
        .note("nccl:all_reduce", 1, 9, args=CommArgs(dims=((5,),), types=("float",)))
    )
    made = ledger(build.work(ALL_REDUCE, 20, 50, launch=5).work(ALL_REDUCE, 60, 70))
    first, second = made.tables["collectives"].to_pylist()
    assert (first["group"], first["group_size"], first["message_bytes"], first["wire_bytes"]) == (
        "default",
        4,
        20,
        30,
    )
    assert (second["message_bytes"], second["dtype"], second["issue_ns"], second["phase"]) == (
        None,
        None,
        None,
        "other",
    )
    texts = {row["kind"]: row["text"] for row in made.tables["notices"].to_pylist()}
    assert texts["groups-unknown"] == "2 of 2 collectives name no group: assumed the default group"
    assert texts["sizes-unknown"] == "the size of 1 of 2 collectives is unknown"
    assert texts["launches-unseen"].startswith("1 of 2 pieces of device work (1 kernels)")


def test_the_only_group_of_all_ranks_is_taken_for_kernels_without_words():
    (row,) = rows(Build(world=4, groups=(WORLD,)).work(ALL_REDUCE, 20, 50))
    assert (row["group"], row["group_size"]) == ("0", 4)


def test_which_of_several_groups_is_not_guessed():
    two = (WORLD, GroupInfo("1", (0, 1, 2, 3), 4), MESH)
    build = Build(world=4, groups=two).work(ALL_REDUCE, 20, 50)
    (row,) = rows(build)
    assert (row["group"], row["wire_bytes"], row["message_bytes"]) == ("unknown", None, None)
    assert notices(build)["groups-unknown"] == "the group of 1 of 1 collectives is unknown"


def test_shortened_ranks_come_from_start_and_stride():
    args = CommArgs(name="allreduce", group="3", group_size=3, rank_start=0, rank_stride=2)
    made = ledger(Build(world=6).work(ALL_REDUCE, 0, 5, args=args))
    assert [group.ranks for group in made.groups] == [(0, 2, 4)]


def test_point_to_point_has_its_peer():
    args = CommArgs(dims=((3,),), types=("float",))
    build = Build(world=2).note("nccl:send 0->1", 1, 9, args=args).work(SEND_RECV, 20, 30, launch=5)
    (row,) = rows(build)
    assert (row["op"], row["root"], row["message_bytes"], row["wire_bytes"]) == ("send", 1, 12, 12)


def test_a_send_recv_kernel_without_more_is_unknown():
    (row,) = rows(Build().work(SEND_RECV, 20, 30, launch=5))
    assert (row["op"], row["wire_bytes"]) == ("unknown", None)


def test_sizes_of_kernels_that_share_a_collective_are_unknown():
    args = CommArgs(dims=((3,),), types=("float",))
    build = (
        Build()
        .note("nccl:all_to_all", 1, 9, args=args)
        .work(SEND_RECV, 20, 30, launch=5)
        .work(SEND_RECV, 30, 35, launch=6)
    )
    assert [row["message_bytes"] for row in rows(build)] == [None, None]


def test_steps_and_rows_agree():
    build = Build().note("ProfilerStep#1", 0, 50).note("ProfilerStep#2", 50, 100)
    build.work(GEMM, 10, 30, launch=5).work(ALL_REDUCE, 20, 61, launch=6).work(
        ALL_REDUCE, 40, 60, launch=55, stream=9
    )
    made = ledger(build)
    first, second = made.tables["steps"].to_pylist()
    assert (first["compute_ns"], first["exposed_comm_ns"], first["idle_ns"]) == (20, 10 + 10 + 1, 10)
    assert (second["exposed_comm_ns"], second["idle_ns"], second["start_ns"]) == (10, 39, 40)
    assert [row["exposed_ns"] for row in made.tables["collectives"].to_pylist()] == [21, 10]


def test_without_a_rank_there_is_no_ledger():
    with pytest.raises(TraceError, match="does not say which rank") as caught:
        rank_ledger(Build(rank=None).work(GEMM, 0, 1).trace(), TABLE)
    assert "rank3.json" in caught.value.hint


def test_a_rank_outside_the_job():
    with pytest.raises(TraceError, match="rank 5 of 2"):
        rank_ledger(Build(rank=5).work(GEMM, 0, 1).trace(), TABLE)


def test_world_size_is_at_least_the_rank():
    assert ledger(Build(rank=3, world=None).work(GEMM, 0, 1)).run.world_size == 4


def test_a_job_that_communicates_has_two_ranks_at_least():
    made = ledger(Build(rank=0, world=None).work(ALL_REDUCE, 0, 1))
    assert made.run.ranks_missing == (1,)
    (finding,) = (one for one in analyze(made).findings if "left no records" in one.title)
    assert finding.ranks == (1,)


def test_an_unknown_group_has_no_floor_and_sends_no_known_bytes():
    args = CommArgs(name="allreduce", dtype="Float", in_elements=1 << 20, out_elements=1 << 20)
    build = Build(world=8, groups=(MESH,), device="NVIDIA H100 80GB HBM3")
    book = ledger(build.note("ProfilerStep#1", 0, 9_000).work(ALL_REDUCE, 20, 9_000, launch=5, args=args))
    (row,) = analyze(book).collectives.to_dict("records")
    assert (row["group"], row["message_bytes"]) == ("unknown", 4 << 20)
    assert pd.isna(row["wire_bytes"])
    assert pd.isna(row["floor_ns"])


def test_an_empty_trace():
    made = ledger(Build())
    assert [row["duration_ns"] for row in made.tables["steps"].to_pylist()] == [0]
    assert {"no-steps", "no-device-timeline"} <= {row["kind"] for row in made.tables["notices"].to_pylist()}


def test_a_host_only_trace_has_compute_from_operators_and_communication_from_gloo():
    build = Build(groups=(GroupInfo("0", (0, 1), 2),)).note("ProfilerStep#0", 0, 100)
    build.op("aten::mm", 10, 30).op("aten::mm", 10, 99, thread=3).op("c10d::allreduce_", 30, 33)
    build.note("gloo:all_reduce", 25, 50, thread=1, args=CommArgs(dims=((2,),), types=("float",)))
    build.note("gloo:all_reduce", 35, 60, thread=1, args=CommArgs(dims=((2,),), types=("float",)))
    made = ledger(build)
    (step,) = made.tables["steps"].to_pylist()
    assert (step["compute_ns"], step["exposed_comm_ns"], step["idle_ns"]) == (20, 30, 50)
    rows = made.tables["collectives"].to_pylist()
    assert [(row["exposed_ns"], row["message_bytes"], row["group"], row["stream"]) for row in rows] == [
        (5 + 8, 8, "0", None), (7 + 10, 8, "0", None),
    ]  # fmt: skip
    assert made.run.device == "cpu"


def test_mesh_dims_in_descriptions():
    assert mesh_dim("mesh_tp") == "tp"
    assert mesh_dim("mesh_dp_shard_cp") == "dp_shard_cp"
    assert mesh_dim("default_pg") is None
    assert mesh_dim("mesh_default") is None
    assert mesh_dim(None) is None


def test_a_worker_needs_neither_pandas_nor_torch():
    """Importing them would cost each worker more than reading its trace."""
    program = """
import sys
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import ALL_REDUCE, Build
rank_ledger(Build().note("ProfilerStep#0", 0, 9).work(ALL_REDUCE, 2, 5, launch=1).trace(), load_table())
print(sorted({"pandas", "torch"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


GLOO = """
import os, sys
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
out = sys.argv[1]
dist.init_process_group("gloo", store=dist.FileStore(out + "/store", 1), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = schedule(wait=0, warmup=1, active=2, repeat=1)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, schedule=steps) as prof:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(1000), async_op=True).wait()
        prof.step()
prof.export_chrome_trace(out + "/rank0.json")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.live
def test_a_gloo_trace_of_this_torch(tmp_path):
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GLOO, str(tmp_path)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    made = rank_ledger(read_trace(find([str(tmp_path / "rank0.json")])[0]), TABLE)
    rows = made.tables["collectives"].to_pylist()
    assert {row["step"] for row in rows} == {1, 2}
    mine = [row for row in rows if row["step"] == 2]
    grads, own = mine[-2:]
    assert (grads["op"], grads["phase"], grads["caused_by_op"]) == (
        "all_reduce",
        "backward",
        "DistributedDataParallel.reducer",
    )
    assert grads["message_bytes"] == 4 * (64 * 64 + 64)
    assert (own["op"], own["phase"], own["caused_by_op"]) == ("all_reduce", "other", "c10d::allreduce_")
    assert (own["message_bytes"], own["dtype"], own["group"], own["group_size"]) == (4000, "float32", "0", 1)
    for step in made.tables["steps"].to_pylist():
        parts = [
            step[f"{name}_ns"] for name in ("compute", "exposed_comm", "exposed_copy", "idle", "unattributed")
        ]
        assert sum(parts) == step["duration_ns"]
        assert step["compute_ns"] > 0
