from __future__ import annotations

import numpy as np

from shardtoll.profiler.traces.collectives.launches import launches, owners, processes
from shardtoll.profiler.traces.collectives.steps import find_steps
from tests.unit.profiler.traces.build import GEMM, Build


def owned(build):
    trace = build.trace()
    steps = find_steps(trace)
    launch = launches(trace.device, trace.calls)
    return steps, launch, owners(trace.device, trace.calls, launch, steps).tolist()


def test_steps_by_their_annotations():
    steps = find_steps(
        Build().note("ProfilerStep#8", 20, 30).note("ProfilerStep#7", 5, 15).note("other", 0, 99).trace()
    )
    assert steps.numbers == (7, 8)
    assert steps.marked
    assert steps.at(np.array([4, 5, 14, 15, 29, 30])).tolist() == [2, 0, 0, 2, 1, 2]


def test_steps_that_overlap_are_cut_at_the_next():
    steps = find_steps(Build().note("ProfilerStep#1", 0, 12).note("ProfilerStep#2", 10, 20).trace())
    assert steps.end_ns.tolist() == [10, 20]


def test_the_rest_of_a_step_around_another_is_still_its_own():
    build = (
        Build().note("ProfilerStep#1", 0, 50).note("ProfilerStep#2", 10, 20).note("ProfilerStep#3", 45, 70)
    )
    steps = find_steps(build.trace())
    assert steps.numbers == (1, 2, 3)
    assert steps.at(np.array([5, 15, 25, 44, 45, 60, 70])).tolist() == [0, 1, 0, 0, 2, 2, 3]
    assert (steps.end_ns[:-1] <= steps.start_ns[1:]).all()


def test_a_correlation_of_two_processes_is_nobodys():
    build = Build().work(GEMM, 15, 18, launch=9).work(GEMM, 25, 28, launch=19)
    build.call("cudaLaunchKernel", 12, 13, thread=1, correlation=1)
    trace = build.trace()
    assert launches(trace.device, trace.calls, processes(trace)).tolist() == [0, 1]
    trace.threads = [("1", "0"), ("2", "0"), ("1", "1"), ("1", "2")]
    assert launches(trace.device, trace.calls, processes(trace)).tolist() == [-1, 1]


def test_without_marks_everything_is_step_0():
    steps, _, owner = owned(Build().work(GEMM, 3, 9).work(GEMM, 20, 30, launch=1))
    assert (steps.numbers, steps.marked, owner) == ((0,), False, [0, 0])
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([1], [30])


def test_work_belongs_to_the_step_that_launched_it():
    build = Build().note("ProfilerStep#1", 0, 10).note("ProfilerStep#2", 10, 20)
    _, launch, owner = owned(
        build.work(GEMM, 15, 18, launch=9).work(GEMM, 18, 30, launch=10).work(GEMM, 30, 31, launch=25)
    )
    assert launch.tolist() == [0, 1, 2]
    assert owner == [0, 1, 2]


def test_an_unseen_launch_takes_the_step_before_on_its_stream():
    build = Build().note("ProfilerStep#1", 0, 10).note("ProfilerStep#2", 10, 20)
    build.work(GEMM, 0, 1).work(GEMM, 2, 4, launch=1).work(GEMM, 5, 6).work(GEMM, 12, 13, launch=11)
    build.work(GEMM, 15, 16).work(GEMM, 3, 4, stream=9)
    _, launch, owner = owned(build)
    assert launch.tolist() == [-1, 0, -1, 1, -1, -1]
    assert owner == [2, 0, 0, 1, 1, 2]
