from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.ledger.records.stall import IDLE_KINDS, SHORT_GAP_NS
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.rank.idle import disjoint
from shardtoll.profiler.traces.rank.phases import ENGINE
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, Build

TABLE = load_table()
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def stalls(build):
    return rank_ledger(build.trace(), TABLE).tables["stalls"].to_pylist()


def of_kind(build, kind):
    return [row for row in stalls(build) if row["kind"] == kind]


def one(build, kind):
    (row,) = of_kind(build, kind)
    return row


def test_data():
    build = (
        Build()
        .note("ProfilerStep#0", 0, 100)
        .note(FETCH, 10, 40)
        .work(GEMM, 5, 20, launch=1)
        .work(GEMM, 50, 60, launch=45)
    )
    row = one(build, "data")
    assert (row["name"], row["count"], row["total_ns"], row["lost_ns"], row["phase"]) == (
        FETCH,
        1,
        30,
        20,
        "other",
    )
    assert sum(row["lost_ns"] for row in of_kind(build, "host") + of_kind(build, "launch")) == 5 + 10 + 40


def test_a_fetch_on_a_worker_thread_holds_nobody_up():
    build = Build().note("ProfilerStep#0", 0, 100).note(FETCH, 10, 40, thread=2).work(GEMM, 50, 60, launch=45)
    assert of_kind(build, "data") == []


def test_host_sync_lasts_until_the_next_launch():
    build = (
        Build()
        .note("ProfilerStep#0", 0, 100)
        .work(GEMM, 5, 30, launch=1)
        .call("cudaStreamSynchronize", 10, 32)
    )
    row = one(build.work(GEMM, 50, 60, launch=45), "host-sync")
    assert (row["name"], row["count"], row["total_ns"], row["lost_ns"]) == (
        "cudaStreamSynchronize",
        1,
        22,
        15,
    )


def test_a_wait_for_an_idle_device_costs_nothing():
    build = (
        Build()
        .note("ProfilerStep#0", 0, 100)
        .work(GEMM, 5, 8, launch=1)
        .call("cudaDeviceSynchronize", 10, 12)
    )
    assert of_kind(build.work(GEMM, 50, 60, launch=45), "host-sync") == []


def test_a_wait_of_a_thread_that_launches_nothing_costs_nothing():
    build = Build().note("ProfilerStep#0", 0, 100).work(GEMM, 5, 30, launch=1)
    build.call("cudaEventSynchronize", 10, 32, thread=3)
    assert of_kind(build.work(GEMM, 50, 60, launch=45), "host-sync") == []


def test_a_read_of_a_value_is_named_with_its_line():
    build = Build().note("ProfilerStep#0", 0, 100).work(GEMM, 5, 30, launch=1).op("aten::item", 9, 34)
    build.call("cudaStreamSynchronize", 10, 32).frame("train.py(7): log", 8, 35).frame(
        "nn.Module: Net_0", 0, 36
    )
    row = one(build.work(GEMM, 50, 60, launch=45), "host-sync")
    assert (row["name"], row["source"], row["module"]) == ("aten::item", "train.py:7 (log)", "Net_0")


@pytest.mark.parametrize(
    ("call", "name"),
    [("hipMemcpyWithStream", "Memcpy DtoH"), ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)")],
)
def test_a_blocking_copy_is_a_wait(call, name):
    build = Build().note("ProfilerStep#0", 0, 100).call(call, 8, 28, correlation=1).copy(name, 10, 26)
    row = one(build.work(GEMM, 50, 60, launch=45), "host-sync")
    assert (row["name"], row["total_ns"], row["lost_ns"]) == (call, 20, 45 - 26 + 10 - 8)


def test_an_asynchronous_copy_is_no_wait():
    build = Build().note("ProfilerStep#0", 0, 100).call("cudaMemcpyAsync", 8, 9, correlation=1)
    build.copy("Memcpy DtoH (Device -> Pinned)", 10, 26).work(GEMM, 50, 60, launch=45)
    assert of_kind(build, "host-sync") == []


def test_idle_inside_a_pipeline_schedule_is_a_bubble_before_anything_else():
    build = Build().note("ProfilerStep#0", 0, 100).note("Forward 0", 20, 30).note("Backward 0", 70, 80)
    build.note(FETCH, 10, 40).work(GEMM, 40, 50, launch=25)
    assert one(build, "bubble")["lost_ns"] == 60 - 10
    assert one(build, "data")["lost_ns"] == 10
    assert one(build, "bubble")["name"] == "pipeline schedule"


def test_host_is_named_by_the_outermost_annotation():
    build = (
        Build().note("ProfilerStep#0", 0, 100).note("Optimizer.step#SGD.step", 20, 60).note("inner", 30, 40)
    )
    build.work(GEMM, 30, 50, launch=25)
    before, after = (
        {(row["name"], row["phase"]): row["lost_ns"] for row in of_kind(build, kind)}
        for kind in ("launch", "host")
    )
    assert before == {("", "other"): 20, ("Optimizer.step#SGD.step", "optimizer"): 10}
    assert after == {("", "other"): 40, ("Optimizer.step#SGD.step", "optimizer"): 10}


US = 1_000


def test_a_short_gap_before_work_that_was_launched_late_is_a_wait_for_a_launch():
    build = Build().note("ProfilerStep#0", 0, 100 * US).work(GEMM, 0, 10 * US, launch=0)
    build.work(GEMM, 30 * US, 90 * US, launch=25 * US).work(GEMM, 95 * US, 100 * US, launch=40 * US)
    # The last kernel was in the queue when its gap began: it waited for something else.
    assert one(build, "launch")["lost_ns"] == 20 * US
    assert one(build, "host")["lost_ns"] == 5 * US


@pytest.mark.parametrize(("gap_ns", "kind"), [(SHORT_GAP_NS, "launch"), (SHORT_GAP_NS + 1, "host")])
def test_a_long_gap_is_the_host_doing_something_else(gap_ns, kind):
    end = gap_ns + 20 * US
    build = Build().note("ProfilerStep#0", 0, end).work(GEMM, 0, 10 * US, launch=0)
    build.work(GEMM, end - 10 * US, end, launch=end - 15 * US)
    assert one(build, kind)["lost_ns"] == gap_ns
    assert of_kind(build, "host" if kind == "launch" else "launch") == []


def test_a_gap_with_another_reason_or_an_unknown_launch_is_no_wait_for_a_launch():
    build = Build().note("ProfilerStep#0", 0, 100 * US).note(FETCH, 12 * US, 20 * US)
    build.work(GEMM, 0, 10 * US, launch=0).work(GEMM, 30 * US, 40 * US, launch=25 * US)
    build.work(GEMM, 60 * US, 100 * US)
    assert of_kind(build, "launch") == []
    assert one(build, "data")["lost_ns"] == 8 * US
    assert one(build, "host")["lost_ns"] == 32 * US


def test_copies():
    up, down = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"
    build = Build().note("ProfilerStep#3", 0, 100).work(GEMM, 10, 20, launch=1)
    build.copy(up, 15, 30, 64, launch=2).copy(up, 25, 40, 36, launch=3).copy(down, 90, 95, -1, launch=4)
    rows = {row["name"]: row for row in of_kind(build, "copy")}
    assert (rows[up]["count"], rows[up]["total_ns"], rows[up]["lost_ns"], rows[up]["bytes"]) == (
        2,
        30,
        20,
        100,
    )
    assert (rows[down]["lost_ns"], rows[down]["bytes"], rows[down]["step"]) == (5, None, 3)


def test_recomputation():
    build = Build().note("ProfilerStep#0", 0, 100).op(f"{ENGINE}: CheckpointFunctionBackward", 10, 50, 1)
    build.op(f"{ENGINE}: AddmmBackward0", 30, 40, 1)
    build.work(GEMM, 20, 40, launch=15, thread=1).work(GEMM, 40, 60, launch=35, thread=1)
    row = one(build, "recompute")
    assert (row["count"], row["total_ns"], row["lost_ns"], row["phase"]) == (1, 20, 20, "recompute")


def test_unclassified_work_by_name():
    build = (
        Build()
        .note("ProfilerStep#0", 0, 100)
        .work("my_allgather", 20, 40, launch=1)
        .work(GEMM, 30, 35, launch=2)
    )
    row = one(build, "unclassified")
    assert (row["name"], row["total_ns"], row["lost_ns"]) == ("my_allgather", 20, 15)


spans = st.tuples(st.integers(0, 90), st.integers(0, 20))
KERNELS = (GEMM, ALL_REDUCE, "my_allgather", "copy")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(spans, st.sampled_from(KERNELS), st.integers(0, 99))),
    st.lists(spans, max_size=3),
    st.lists(spans, max_size=3),
    st.lists(spans, max_size=2),
    st.integers(10, 90),
)
def test_idle_kinds_and_layers_add_up_exactly(works, fetches, waits, pipes, cut):
    build = Build().note("ProfilerStep#0", 0, cut).note("ProfilerStep#1", cut + 2, 100)
    for (start, length), name, launch in works:
        (build.copy if name == "copy" else build.work)(name, start, start + length, launch=launch)
    for start, length in fetches:
        build.note(FETCH, start, start + length)
    for start, length in waits:
        build.call("cudaStreamSynchronize", start, start + length)
    for start, length in pipes:
        build.note("Forward 0", start, start + length)
    ledger = rank_ledger(build.trace(), TABLE)
    rows = ledger.tables["stalls"].to_pylist()
    for step in ledger.tables["steps"].to_pylist():

        def lost(*kinds, step=step):
            return sum(row["lost_ns"] for row in rows if row["step"] == step["step"] and row["kind"] in kinds)

        assert lost(*IDLE_KINDS) == step["idle_ns"]
        assert lost("copy") == step["exposed_copy_ns"]
        # Without a device timeline nothing is known of the time, so that nothing can be said to stall.
        assert lost("unclassified") == (step["unattributed_ns"] if step["level"] == "survey" else 0)
    for lead in ledger.tables["leadups"].to_pylist():
        row = ledger.tables["collectives"].to_pylist()[lead["index"]]
        parts = [lead[f"{part}_ns"] for part in ("compute", "comm", "copy", "data", "sync", "host")]
        assert sum(parts) == row["start_ns"] - lead["since_ns"]


def test_disjoint_gives_each_instant_to_what_started_first():
    start, end, row = disjoint(np.array([5, 0, 3, 20]), np.array([12, 10, 4, 20]), np.array([7, 8, 9, 6]))
    assert (start.tolist(), end.tolist(), row.tolist()) == ([0, 10], [10, 12], [8, 7])
