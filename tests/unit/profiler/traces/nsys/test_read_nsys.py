"""What exports of Nsight Systems say, row by row."""

from __future__ import annotations

import fsspec
import pytest

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.trace_columns import COPY, KERNEL, SET
from shardtoll.profiler.traces.job.job import read_traces
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.nsys_exports import ALL_REDUCE, Small, names


def test_device_work_and_calls(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    small.export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        start=2500,
        end=2600,
        deviceId=0,
        streamId=8,
        correlationId=9,
        bytes=4096,
        copyKind=2,
        srcKind=2,
        dstKind=0,
        globalPid=300 << 24,
    )
    for number, label in ((0, "Pageable"), (2, "Device")):
        small.export.add("ENUM_CUDA_MEM_KIND", id=number, label=label)
    small.export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18)
    trace = small.trace()
    assert trace.device.kind.tolist() == [KERNEL, COPY]
    assert names(trace, trace.device) == ["gemm", "Memcpy DtoH (Device -> Pageable)"]
    assert trace.device.bytes.tolist() == [-1, 4096]
    assert trace.device.start_ns.tolist() == [10**18 + 1000, 10**18 + 2500]
    assert names(trace, trace.calls) == ["cudaLaunchKernel"]
    assert trace.calls.correlation.tolist() == trace.device.correlation[:1].tolist()
    assert trace.meta.base_ns == 10**18


def test_memory_sets_and_whole_graphs(small: Small) -> None:
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    work = ", ".join(f"{name} INTEGER" for name in columns)
    small.export.extra["CUPTI_ACTIVITY_KIND_MEMSET"] = f"{work}, bytes INTEGER"
    small.export.extra["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = work
    row = {"deviceId": 0, "streamId": 7, "correlationId": 5, "globalPid": 300 << 24}
    small.export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=1, end=2, bytes=64, **row)
    small.export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=3, end=1003, **row)
    trace = small.trace("rank0.sqlite")
    assert trace.device.kind.tolist() == [SET, KERNEL]
    assert "graphs-whole" in dict(trace.notices)
    ledger = rank_ledger(trace, load_table())
    # What ran in the graph is not known: neither compute nor communication.
    (step,) = ledger.tables["steps"].to_pylist()
    assert (step["unattributed_ns"], step["compute_ns"]) == (1000, 0)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["step 7", "step 8"], [7, 8]),
        (["Iteration 3/10", "Iteration 4/10"], [3, 4]),
        (["train_step_1", "train_step_2"], [1, 2]),
        (["global step: 5", "global step: 6"], [5, 6]),
        (["epoch 0, batch 5", "epoch 1, batch 6"], [5, 6]),
        (["iteration", "iteration"], [0, 1]),
        (["[pl][profile]run_training_batch"] * 2, [0, 1]),
        (["batch 0", "batch 0"], [0, 1]),
        (["ProfilerStep#4", "ProfilerStep#5"], [4, 5]),
    ],
)
def test_steps_by_their_usual_names(small: Small, texts: list[str], numbers: list[int]) -> None:
    for nth, text in enumerate(texts):
        small.range(text, 10_000 * nth, 10_000 * nth + 9000)
        small.range("optimizer step 1", 10_000 * nth + 10, 10_000 * nth + 20)
        small.kernel("gemm", 10_000 * nth + 3000, 10_000 * nth + 4000)
    ledger = rank_ledger(small.trace("rank0.sqlite"), load_table())
    assert [row["step"] for row in ledger.tables["steps"].to_pylist()] == numbers


def test_the_longest_of_several_counts_is_the_step(small: Small) -> None:
    for nth in range(2):
        small.range(f"step {nth}", 10_000 * nth, 10_000 * nth + 9000)
        for batch in range(2):
            small.range(f"batch {batch}", 10_000 * nth + 4000 * batch, 10_000 * nth + 4000 * batch + 3000)
        small.kernel("gemm", 10_000 * nth + 3000, 10_000 * nth + 4000)
    ledger = rank_ledger(small.trace("rank0.sqlite"), load_table())
    assert [row["step"] for row in ledger.tables["steps"].to_pylist()] == [0, 1]


def test_a_range_called_step_beside_forward_is_the_optimizers(small: Small) -> None:
    for nth, text in enumerate(("forward", "backward", "step")):
        small.range(text, 1000 * nth, 1000 * nth + 900)
    small.kernel("gemm", 500, 600)
    trace = small.trace()
    assert not any(name.startswith("ProfilerStep") for name in trace.names)


def test_phases_of_the_user(small: Small) -> None:
    small.range("step 1", 0, 10_000)
    for text, at in (("model.forward", 0), ("backward_pass", 3000), ("optimizer_step", 6000)):
        small.range(text, at, at + 2500)
        small.range("ncclAllReduce", at + 100, at + 200)
        small.kernel(ALL_REDUCE, at + 300, at + 400, called=at + 110)
    ledger = rank_ledger(small.trace("rank0.sqlite"), load_table())
    phases = [row["phase"] for row in ledger.tables["collectives"].to_pylist()]
    assert phases == ["forward", "backward", "optimizer"]


def test_operators_of_emit_nvtx(small: Small) -> None:
    node = "autograd::engine::evaluate_function: MmBackward0"
    small.range("step 1", 0, 10_000)
    small.range("aten::linear, seq = 3, op_id = 11, sizes = [[2, 3], [3, 4]]", 100, 900)
    small.range("aten::mm, op_id = 12", 200, 800)
    small.kernel("gemm", 1000, 1500, called=300)
    small.range(f"{node}, seq = 3, op_id = 13", 2000, 2900, tid=301)
    small.range("aten::mm, op_id = 14", 2100, 2800, tid=301)
    small.kernel("gemm", 3000, 3700, called=1900)
    trace = small.trace("rank0.sqlite")
    assert names(trace, trace.ops) == [node]
    ops = rank_ledger(trace, load_table()).tables["device_ops"].to_pylist()
    assert {(row["op"], row["device_ns"]) for row in ops} == {("aten::mm", 500), (None, 700)}


def test_sizes_of_what_is_shared_count_all_ranks(small: Small) -> None:
    ids = {"NCCL communicator ID": 5}
    small.range("ncclCommInitRank", 1, 2, schema=1, values={**ids, "No. of ranks": 4, "Rank": 2})
    kinds = {
        "ncclAllReduce": ("AllReduce_Sum_f32_RING_LL", "all_reduce", 64),
        "ncclAllGather": ("AllGather_RING_LL", "all_gather", 256),
        "ncclReduceScatter": ("ReduceScatter_Sum_f32_RING_LL", "reduce_scatter", 256),
        "ncclAlltoAll": ("SendRecv", "all_to_all", 256),
        "ncclBroadcast": ("Broadcast_RING_LL", "broadcast", 64),
    }
    for nth, (call, (kernel, _, _)) in enumerate(kinds.items()):
        at = 1000 * (nth + 1)
        small.range(call, at, at + 400, schema=2, values={**ids, "Message size [bytes]": 64})
        small.kernel(f"ncclDevKernel_{kernel}(args)", at + 500, at + 600, called=at + 100)
    (job,) = read_traces([str(small.write("rank2.sqlite"))], cache=False)
    rows = job.ledger.tables["collectives"].to_pylist()
    assert [(row["op"], row["message_bytes"], row["group_size"]) for row in rows] == [
        (op, size, 4) for _, op, size in kinds.values()
    ]
    assert {row["group"] for row in rows} == {"nccl 0x0000000000000005"}
    assert job.ledger.run.ranks_seen == (2,)


def test_sends_to_and_receives_from_all_are_an_all_to_all(small: Small) -> None:
    ids = {"NCCL communicator ID": 5}
    small.range("ncclCommInitRank", 1, 2, schema=1, values={**ids, "No. of ranks": 3, "Rank": 0})
    small.range("nccl:all_to_all, op_id = 5", 90, 350)
    small.range("ncclGroupStart", 100, 110)
    for peer, size in enumerate((10, 20, 31)):
        for nth, call in enumerate(("ncclSend", "ncclRecv")):
            at = 120 + 20 * peer + 10 * nth
            small.range(
                call, at, at + 5, schema=3, values={**ids, "Message size [bytes]": size, "Peer rank": peer}
            )
    small.range("ncclGroupEnd", 200, 300)
    small.kernel("ncclDevKernel_SendRecv(args)", 500, 600, called=250)
    small.range("ncclSend", 700, 750, schema=3, values={**ids, "Message size [bytes]": 7, "Peer rank": 1})
    small.kernel("ncclDevKernel_SendRecv(args)", 800, 900, called=710)
    (job,) = read_traces([str(small.write("rank0.sqlite"))], cache=False)
    rows = job.ledger.tables["collectives"].to_pylist()
    assert [(row["op"], row["message_bytes"]) for row in rows] == [("all_to_all", 61), ("send", 7)]


def test_a_group_of_one_call_launches_when_it_ends(small: Small) -> None:
    """So torch calls NCCL: the call's own range is over before its kernel is launched."""
    ids = {"NCCL communicator ID": 5}
    small.range("ncclCommInitRank", 1, 2, schema=1, values={**ids, "No. of ranks": 4, "Rank": 0})
    for nth, kernel in enumerate((ALL_REDUCE, "gemm", ALL_REDUCE)):
        at = 1000 * (nth + 1)
        if kernel == ALL_REDUCE:
            small.range("ncclGroupStart", at, at + 10)
            small.range(
                "ncclAllReduce", at + 20, at + 30, schema=2, values={**ids, "Message size [bytes]": 64 + nth}
            )
            small.range("ncclGroupEnd", at + 40, at + 90)
        small.kernel(kernel, at + 500, at + 600, called=at + 50)
    ledger = rank_ledger(small.trace("rank0.sqlite"), load_table())
    rows = ledger.tables["collectives"].to_pylist()
    assert [(row["op"], row["dtype"], row["message_bytes"]) for row in rows] == [
        ("all_reduce", "bfloat16", 64),
        ("all_reduce", "bfloat16", 66),
    ]


@pytest.mark.parametrize("sized", [True, False])
def test_members_of_a_communicator_are_known_from_all_files(small: Small, sized: bool) -> None:
    """Ranks 0 and 2, and 1 and 3, are groups of a job of four; each file knows only its own place."""
    folder = small.folder / "job"
    folder.mkdir()
    for rank in range(4):
        each = Small(folder)
        ids = {"NCCL communicator ID": 50 + rank % 2}
        if sized:
            each.range(
                "ncclCommInitRank", 1, 2, schema=1, values={**ids, "No. of ranks": 2, "Rank": rank // 2}
            )
        each.range("ncclBroadcast", 1000, 1400, schema=2, values={**ids, "Message size [bytes]": 64})
        each.kernel("ncclDevKernel_Broadcast_RING_LL(args)", 1500, 1600, called=1100)
        each.write(f"rank{rank}.sqlite")
    (job,) = read_traces([str(folder)], cache=False)
    groups = {group.name: group.ranks for group in job.ledger.groups}
    assert groups == {"nccl 0x0000000000000032": (0, 2), "nccl 0x0000000000000033": (1, 3)}
    rows = job.ledger.tables["collectives"].to_pylist()
    assert [row["group_size"] for row in rows] == [2] * 4


def test_ranks_of_mpi_and_of_variables(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    small.export.extra["MPI_RANKS"] = "globalTid INTEGER, rank INTEGER"
    small.export.add("MPI_RANKS", globalTid=300 << 24 | 300, rank=5)
    assert small.trace("rank1.sqlite").meta.rank == 5
    value = "PATH=/bin;SLURM_PROCID=6;SLURM_NTASKS=8;TOKEN=RANK"
    small.export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=value)
    trace = small.trace("rank1.sqlite")
    assert (trace.meta.rank, trace.meta.world_size) == (6, 8)
    assert not any("TOKEN" in text for text in (*trace.names, *(text for _, text in trace.notices)))


def test_a_strong_name_counts_more_than_a_place_in_a_communicator(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    values = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": 1}
    small.range("ncclCommInitRank", 1, 2, schema=1, values=values)
    assert small.trace("job.sqlite").meta.rank == 1
    assert small.trace("x_3.sqlite").meta.rank == 1
    assert small.trace("rank5.sqlite").meta.rank == 5


def test_processes_that_call_their_devices_alike_are_two_ranks(small: Small) -> None:
    for pid, name in ((300, "a"), (400, "b")):
        small.correlation = 0
        for nth in range(3):
            small.kernel(name, 1000 * nth + 500, 1000 * nth + 600, pid=pid)
    (job,) = read_traces([str(small.write("job.sqlite"))], cache=False)
    assert job.ledger.run.ranks_seen == (0, 1)
    kinds = {row["kind"] for row in job.ledger.tables["notices"].to_pylist()}
    assert "launches-unseen" not in kinds


def test_columns_and_tables_that_a_version_lacks(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    small.range("step 1", 0, 5000)
    for table in ("TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"):
        del small.export.rows[table]
    small.export.lacks["NVTX_EVENTS"] = (
        "eventType",
        "domainId",
        "jsonText",
        "jsonTextId",
        "binaryData",
        "textId",
    )
    small.export.lacks["CUPTI_ACTIVITY_KIND_KERNEL"] = ("demangledName", "globalPid", "streamId")
    trace = small.trace("rank3.sqlite")
    assert names(trace, trace.device) == ["gemm"]
    assert names(trace, trace.annotations) == ["ProfilerStep#1"]
    assert [kind for kind, _ in trace.notices] == ["rank-from-name", "clock-unknown"]
    del small.export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    texts = dict(small.trace("rank3.sqlite").notices)
    assert "has no table CUPTI_ACTIVITY_KIND_RUNTIME" in texts["tables-missing"]


def test_rows_without_usable_times_are_counted(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    small.kernel("backwards", 3000, 2000)
    small.kernel("eternal", 4000, 2**62)
    small.range("open", 500, None)
    trace = small.trace()
    assert names(trace, trace.device) == ["gemm"]
    texts = dict(trace.notices)
    assert "2 events could not be read" in texts["file-damaged"]
    assert "1 NVTX range did not end" in texts["ranges-open"]


def test_exports_at_an_address_are_read(small: Small) -> None:
    small.kernel("gemm", 1000, 2000)
    system = fsspec.filesystem("memory")
    system.pipe("/exports/rank1.sqlite", small.write().read_bytes())
    (job,) = read_traces(["memory://exports"], cache=False)
    (step,) = job.ledger.tables["steps"].to_pylist()
    assert step["compute_ns"] == 1000


def test_annotations_of_torch_are_no_calls_of_nccl(small: Small) -> None:
    small.range("nccl:all_reduce, op_id = 5", 100, 200)
    small.kernel("ncclDevKernel_Generic(args)", 300, 400, called=150)
    ledger = rank_ledger(small.trace("rank0.sqlite"), load_table())
    (row,) = ledger.tables["collectives"].to_pylist()
    assert row["op"] == "all_reduce"


def test_more_rows_than_the_limit_are_refused(small: Small) -> None:
    for nth in range(4):
        small.kernel("gemm", 1000 * nth + 500, 1000 * nth + 600)
    assert len(small.trace(row_limit=8).device.name) == 4
    with pytest.raises(TraceError, match="holds more than 7 events of interest"):
        small.trace(row_limit=7)
