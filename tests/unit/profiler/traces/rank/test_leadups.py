from __future__ import annotations

from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.trace_columns import CommArgs
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, Build
from tests.unit.profiler.traces.rank.test_stalls import FETCH

TABLE = load_table()
TP = CommArgs(name="allreduce", group="tp", group_size=2, ranks=(0, 1))
DP = CommArgs(name="allreduce", group="dp", group_size=2, ranks=(0, 2))


def leadups(build):
    return rank_ledger(build.trace(), TABLE).tables["leadups"].to_pylist()


def parts(row):
    return tuple(row[f"{part}_ns"] for part in ("compute", "comm", "copy", "data", "sync", "host"))


def test_what_lies_between_two_collectives_of_a_group():
    build = Build(world=4).note("ProfilerStep#0", 0, 300)
    build.work(ALL_REDUCE, 10, 20, launch=1, args=TP).work(GEMM, 20, 50, launch=2).work(
        "tiny", 50, 55, launch=3
    )
    build.work(ALL_REDUCE, 55, 65, launch=4, args=DP).copy("Memcpy HtoD", 65, 75, launch=5)
    build.note(FETCH, 75, 95).work(ALL_REDUCE, 100, 110, launch=96, args=TP)
    first, other, second = leadups(build)
    assert (first["since_ns"], parts(first), first["index"]) == (0, (0, 0, 0, 0, 0, 10), 0)
    assert (other["since_ns"], parts(other)) == (0, (35, 10, 0, 0, 0, 10))
    assert (second["since_ns"], parts(second)) == (20, (35, 10, 10, 20, 0, 5))
    assert (second["op"], second["op_ns"], second["phase"], second["step"]) == (GEMM, 30, "other", 0)


def test_the_module_with_most_compute_is_named_where_frames_were_recorded():
    build = Build().note("ProfilerStep#0", 0, 300).frame("nn.Module: Block_0", 1, 9)
    build.frame("nn.Module: Linear_3", 2, 5).frame("nn.Module: Norm_1", 6, 8)
    build.work(GEMM, 20, 50, launch=3).work("norm", 50, 60, launch=7).work(ALL_REDUCE, 60, 70, launch=10)
    build.work(GEMM, 80, 90, launch=11).work(ALL_REDUCE, 95, 99, launch=12)
    assert [row["module"] for row in leadups(build)] == ["Linear_3", None]


def test_waiting_for_the_device_is_told_apart():
    build = Build().note("ProfilerStep#0", 0, 300).work(ALL_REDUCE, 10, 20, launch=1)
    build.call("cudaDeviceSynchronize", 5, 21).work(ALL_REDUCE, 60, 70, launch=51)
    assert parts(leadups(build)[1]) == (0, 0, 0, 0, 31, 9)


def test_bubbles_count_as_host():
    build = (
        Build().note("ProfilerStep#0", 0, 300).work(ALL_REDUCE, 10, 20, launch=1).note("Forward 0", 15, 40)
    )
    assert parts(leadups(build.work(ALL_REDUCE, 60, 70, launch=51))[1]) == (0, 0, 0, 0, 0, 40)


def test_collectives_of_one_group_that_overlap():
    build = Build().note("ProfilerStep#0", 0, 300).work(ALL_REDUCE, 10, 30, launch=1)
    row = leadups(build.work(ALL_REDUCE, 20, 40, launch=2, stream=9))[1]
    assert (row["since_ns"], parts(row), row["op"], row["op_ns"]) == (20, (0,) * 6, None, None)


def test_times_count_from_the_epoch():
    build = Build(base_ns=0).note("ProfilerStep#0", 1000, 1300).work(ALL_REDUCE, 1010, 1020, launch=1001)
    ledger = rank_ledger(build.work(ALL_REDUCE, 1050, 1060, launch=1002).trace(), TABLE)
    assert ledger.run.epoch_ns == 1000
    assert [row["since_ns"] for row in ledger.tables["leadups"].to_pylist()] == [0, 20]
    assert [row["start_ns"] for row in ledger.tables["collectives"].to_pylist()] == [10, 50]
