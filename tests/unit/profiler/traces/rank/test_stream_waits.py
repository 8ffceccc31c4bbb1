"""Waits of streams for each other: the work grows with the events, however many streams there are."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np

from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.rank import stream_waits as ours
from shardtoll.profiler.traces.rank.facts import Facts, work_out
from tests.unit.profiler.traces.build import ALL_REDUCE, GEMM, Build

TABLE = load_table()


def calls_in(work: Callable[[], object]) -> int:
    """Return how many functions work calls: its steps, on whatever machine."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_free_times_are_those_of_one_stream_after_the_other():
    chance = random.Random(7)
    for _ in range(50):
        count = chance.randrange(1, 40)
        start = np.array([chance.randrange(60) for _ in range(count)])
        end = start + [chance.randrange(30) for _ in range(count)]
        stream = np.array([chance.choice([-3, 0, 7, 2**31 - 1]) for _ in range(count)])
        wanted = np.full(count, -(2**62))
        for one in set(stream.tolist()):
            latest = -(2**62)
            for place in sorted(np.flatnonzero(stream == one), key=lambda at: (start[at], end[at])):
                wanted[place], latest = latest, max(latest, int(end[place]))
        assert ours._free_ns(start, end, stream).tolist() == wanted.tolist()


def test_free_times_of_many_streams_take_as_many_steps_as_those_of_few():
    start = np.arange(50_000)
    few, many = (
        calls_in(lambda streams=streams: ours._free_ns(start, start + 5, start % streams))
        for streams in (2, 50_000)
    )
    assert few == many


def on_streams(count: int, name: str = ALL_REDUCE) -> Facts:
    """A collective on each of so many streams, and a wait call before each."""
    build = Build().note("ProfilerStep#0", 0, 100 * count + 100)
    for number in range(count):
        begin = 100 * number
        build.call("cudaStreamWaitEvent", begin + 1, begin + 2)
        build.work(name, begin + 20, begin + 60, launch=begin + 5, stream=number)
    return work_out(build.trace(), TABLE)


def waits(facts: Facts) -> ours.Pairs:
    return ours.stream_waits(facts, np.arange(len(facts.launch)), facts.launch)


def test_each_wait_is_held_against_so_many_streams_at_most(monkeypatch):
    monkeypatch.setattr(ours, "MOST_STREAMS", 8)
    facts = on_streams(60)
    pairs = waits(facts)
    assert max(waiting - other for waiting, other in pairs) == 8
    assert min(waiting - other for waiting, other in pairs) == 1
    assert len(pairs) == sum(min(number, 8) for number in range(60))
    once, twice = (calls_in(lambda facts=facts: waits(facts)) for facts in (on_streams(200), on_streams(400)))
    assert twice < 2.5 * once


def test_all_other_streams_count_where_there_are_no_more(monkeypatch):
    facts = on_streams(20)
    whole = waits(facts)
    assert len(whole) == 20 * 19 / 2
    monkeypatch.setattr(ours, "MOST_STREAMS", 19)
    assert sorted(waits(facts)) == sorted(whole)


def test_a_wait_that_is_taken_is_looked_at_once():
    """Each collective takes the last wait that is left, on a stream that had none."""
    looked = 0

    class Counting(dict[int, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    taken = Counting()
    for wanted in reversed(range(1000)):
        assert ours._last_free(taken, 999) == wanted
        taken[wanted] = wanted - 1
    assert ours._last_free(taken, 999) == -1
    assert looked < 5_000


def waited_for(wait: int, *, taken: bool) -> set[int]:
    """Return what the last work waits for: its stream was launched on at 30, another's at 5."""
    build = Build().note("ProfilerStep#0", 0, 400)
    build.work(GEMM, 10, 20, launch=5, stream=1).work(GEMM, 32, 40, launch=30, stream=2)
    build.call("cudaStreamWaitEvent", wait, wait + 1)
    if taken:
        build.work(ALL_REDUCE, 50, 60, launch=45, stream=3)
    build.work(GEMM, 120, 130, launch=100, stream=2)
    facts = work_out(build.trace(), TABLE)
    return {other for waiting, other in waits(facts) if waiting == len(facts.launch) - 1}


def test_only_a_wait_since_the_streams_last_launch_counts_and_none_of_a_collective():
    assert waited_for(31, taken=False) == {0}
    assert waited_for(30, taken=False) == set()
    assert waited_for(31, taken=True) == set()


def test_compute_waits_only_where_a_wait_was_recorded():
    build = Build().note("ProfilerStep#0", 0, 400)
    build.work(GEMM, 20, 60, launch=5, stream=1).work(GEMM, 100, 150, launch=70, stream=2)
    build.call("cudaStreamWaitEvent", 160, 161).work(GEMM, 200, 250, launch=170, stream=3)
    facts = work_out(build.trace(), TABLE)
    assert sorted(waits(facts)) == [(2, 0), (2, 1)]
