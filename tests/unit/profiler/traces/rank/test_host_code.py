"""What the host did in idle time that no record explains: the deepest frame that most of it is in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.rank.host_code import Code, HostCode
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.profiler.traces.build import GEMM, Build

MS = 1_000_000
MAIN = "train.py(1): main"
READ = "/home/me/data.py(40): read_video"
DECODE = "transformers/image_processing.py(178): preprocess"


def whole(build: Build, *pieces: tuple[int, int], step_ns: tuple[int, int] | None = None) -> Code:
    start, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    return HostCode(build.trace(), 0).during(start, length, step_ns)


def during(build: Build, *pieces: tuple[int, int]) -> Code:
    return replace(whole(build, *pieces), share=0.0)


def test_the_deepest_frame_that_most_of_the_time_is_in_is_named_with_the_users_line():
    build = Build().frame(MAIN, 0, 100 * MS).frame(READ, 5 * MS, 95 * MS)
    for nth in range(80):
        # A short function called many times counts with all its calls.
        build.frame(DECODE, (10 + nth) * MS, (10 + nth) * MS + 900_000)
    assert during(build, (10 * MS, 80 * MS)) == Code(
        None, "/home/me/data.py:40 (read_video)", "transformers/image_processing.py:178 (preprocess)"
    )
    # One that is open for less than half of it is no name for it: then the caller's line stands alone.
    few = Build().frame(MAIN, 0, 100 * MS).frame(READ, 5 * MS, 95 * MS).frame(DECODE, 10 * MS, 40 * MS)
    assert during(few, (10 * MS, 80 * MS)) == Code(None, "/home/me/data.py:40 (read_video)", None)


def test_longer_pieces_tell_more_and_frames_of_other_threads_nothing():
    build = Build().frame(MAIN, 0, 100 * MS).frame(READ, 0, 10 * MS).frame(DECODE, 0, 100 * MS, thread=3)
    build.frame("train.py(70): save", 30 * MS, 90 * MS)
    pieces = [(nth * MS, MS) for nth in range(10)]
    assert during(build, *pieces).source == "/home/me/data.py:40 (read_video)"
    assert during(build, *pieces, (30 * MS, 60 * MS)).source == "train.py:70 (save)"


def test_what_torch_puts_between_a_call_and_what_is_called_is_not_named():
    build = Build().frame(MAIN, 0, 10 * MS).frame("torch/nn/functional.py(2811): batch_norm", 0, 10 * MS)
    build.frame("torch/nn/modules/module.py(1779): _call_impl", 0, 10 * MS)
    build.frame("<built-in method sleep>", 0, 10 * MS)
    assert during(build, (MS, 8 * MS)) == Code(
        None, "train.py:1 (main)", "torch/nn/functional.py:2811 (batch_norm)"
    )


def test_without_frames_nothing_is_named():
    assert during(Build().note("ProfilerStep#0", 0, 10 * MS), (0, 5 * MS)) == Code()
    short = Build().frame("train.py(1): main", 0, 50_000)
    assert during(short, (0, 5 * MS)) == Code()


def test_launches_that_are_recorded_into_a_graph_are_named_before_any_frame():
    build = Build().frame(MAIN, 0, 100 * MS)
    build.call("hipStreamBeginCapture", 10 * MS, 10 * MS + 1).call(
        "hipStreamEndCapture", 80 * MS, 80 * MS + 1
    )
    assert during(build, (15 * MS, 60 * MS)) == Code(GRAPH_CAPTURE)
    assert during(build, (60 * MS, 40 * MS)) == Code(GRAPH_CAPTURE)
    assert during(build, (75 * MS, 20 * MS)) == Code(None, "train.py:1 (main)", None)
    # A capture of which the recording lacks the end says nothing.
    cut = Build().frame(MAIN, 0, 100 * MS).call("cudaStreamBeginCapture", 10 * MS, 10 * MS + 1)
    assert during(cut, (15 * MS, 60 * MS)) == Code(None, "train.py:1 (main)", None)


def test_rows_of_idle_time_carry_it_and_add_up_as_before():
    build = Build().note("ProfilerStep#0", 0, 100 * MS).frame(MAIN, 0, 100 * MS).frame(READ, 10 * MS, 90 * MS)
    build.work(GEMM, 0, 10 * MS, launch=1).work(GEMM, 90 * MS, 100 * MS, launch=89 * MS)
    rows = rank_ledger(build.trace(), load_table()).tables["stalls"].to_pylist()
    (row,) = [row for row in rows if row["kind"] == "host"]
    assert row["lost_ns"] == 80 * MS
    assert row["source"] == "/home/me/data.py:40 (read_video)"
    assert row["library"] is None
    # A function that is open for a part of the idle time has that part alone.
    build = Build().note("ProfilerStep#0", 0, 100 * MS).frame(MAIN, 0, 100 * MS).frame(READ, 10 * MS, 58 * MS)
    build.work(GEMM, 0, 10 * MS, launch=1).work(GEMM, 90 * MS, 100 * MS, launch=89 * MS)
    rows = rank_ledger(build.trace(), load_table()).tables["stalls"].to_pylist()
    named, rest = [row for row in rows if row["kind"] == "host"]
    assert named["lost_ns"] == pytest.approx(48 * MS, rel=0.03)
    assert named["lost_ns"] + rest["lost_ns"] == 80 * MS
    assert (rest["source"], rest["library"]) == (None, None)


def test_a_frame_that_is_open_for_the_whole_step_is_no_reason_for_its_idle_time():
    build = Build().frame(MAIN, 0, 100 * MS).frame(READ, 40 * MS, 60 * MS)
    assert whole(build, (30 * MS, 60 * MS), step_ns=(0, 100 * MS)) == Code()
    found = whole(build, (35 * MS, 30 * MS), step_ns=(0, 100 * MS))
    assert found.source == "/home/me/data.py:40 (read_video)"
    assert found.share == pytest.approx(20 / 30, rel=0.05)
    # In a longer recording the same frame is one call among others.
    assert whole(build, (30 * MS, 60 * MS), step_ns=(0, 200 * MS)).source == "train.py:1 (main)"


def test_an_annotation_of_a_user_is_never_taken_for_a_capture():
    build = Build().note("ProfilerStep#0", 0, 100 * MS).note(GRAPH_CAPTURE, 10 * MS, 90 * MS)
    build.work(GEMM, 0, 10 * MS, launch=1).work(GEMM, 90 * MS, 100 * MS, launch=89 * MS)
    rows = rank_ledger(build.trace(), load_table()).tables["stalls"].to_pylist()
    assert [row["name"] for row in rows if row["kind"] == "host"] == ["graph capture (annotation)"]
