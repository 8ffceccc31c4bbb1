"""The vectorised cut of a step is the one of the accounting, instant by instant."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from shardtoll.profiler.live.capture.step_parts import MOST_LAYERS, around, cut, flat
from shardtoll.profiler.live.cause.accounting import total_ns, union
from tests.unit.profiler.live.partition import partition

PAIRS = st.tuples(st.integers(0, 60), st.integers(0, 9))
INTERVALS = st.lists(PAIRS.map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=9)
EPOCH_NS = 2**60


@given(st.lists(INTERVALS, max_size=MOST_LAYERS), st.integers(0, 30), st.integers(0, 40))
def test_it_is_the_partition_of_the_accounting(
    layers: list[list[tuple[int, int]]], start: int, length: int
) -> None:
    window = (EPOCH_NS + start, EPOCH_NS + start + length)
    layers = [[(EPOCH_NS + a, EPOCH_NS + b) for a, b in layer] for layer in layers]
    edges = [flat(intervals, layer) for layer, intervals in enumerate(layers)]
    found = cut(window, len(layers), edges)
    wanted = partition(window, layers)
    assert [found.intervals(place) for place in range(len(layers) + 1)] == [union(part) for part in wanted]
    assert list(found.totals_ns) == [total_ns(part) for part in wanted]
    assert sum(found.totals_ns) == length


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 4), max_size=9), INTERVALS)
def test_what_lies_around_operators_is_a_layer_and_they_are_another(
    lengths: list[tuple[int, int, int, int]], first: list[tuple[int, int]]
) -> None:
    times = list(accumulate(length for four in lengths for length in four))
    outer = [(times[i], times[i + 1]) for i in range(0, len(times), 2)]
    inner = [(times[i], times[i + 1]) for i in range(1, len(times), 4)]
    found = cut((0, 100), 3, [around(times, outer=1, inner=2), flat(first, 0)])
    wanted = partition((0, 100), [first, outer, inner])
    assert list(found.totals_ns) == [total_ns(part) for part in wanted]


def test_overlapping_operators_of_several_threads_count_once() -> None:
    found = cut((0, 20), 2, [around([0, 1, 6, 7, 2, 3, 9, 12], outer=0, inner=1)])
    wanted = partition((0, 20), [[(0, 1), (6, 7), (2, 3), (9, 12)], [(1, 6), (3, 9)]])
    assert list(found.totals_ns) == [total_ns(part) for part in wanted]
