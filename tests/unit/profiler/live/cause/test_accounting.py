"""The arithmetic of a step against a brute-force oracle that looks at every single nanosecond."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.profiler.live.cause.accounting import (
    Interval,
    Span,
    intersect,
    share_exposed,
    subtract,
    total_ns,
    union,
)
from tests.unit.profiler.live.partition import partition

END = 60
points = st.integers(0, END)
intervals = st.lists(st.tuples(points, points).map(lambda p: (min(p), max(p))), max_size=8)


def instants(found: list[Interval]) -> set[int]:
    return {at for start, end in found for at in range(start, end)}


@given(intervals)
def test_union_keeps_the_instants_and_is_disjoint(found: list[Interval]) -> None:
    merged = union(found)
    assert instants(merged) == instants(found)
    assert total_ns(merged) == len(instants(found))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))


@given(intervals, intervals)
def test_intersect_and_subtract_split_the_first(a: list[Interval], b: list[Interval]) -> None:
    left, right = union(a), union(b)
    assert instants(intersect(left, right)) == instants(a) & instants(b)
    assert instants(subtract(left, right)) == instants(a) - instants(b)
    assert total_ns(intersect(left, right)) + total_ns(subtract(left, right)) == total_ns(left)


@given(points, points, st.lists(intervals, max_size=5))
def test_partition_gives_each_instant_to_the_first_layer(
    a: int, b: int, layers: list[list[Interval]]
) -> None:
    step = (min(a, b), max(a, b))
    parts = partition(step, layers)
    assert sum(total_ns(part) for part in parts) == step[1] - step[0], "a step's parts add up"
    owner: dict[int, int] = {}
    for at in range(*step):
        claims = [index for index, layer in enumerate(layers) if at in instants(layer)]
        owner[at] = claims[0] if claims else len(layers)
    for index, part in enumerate(parts):
        assert instants(part) == {at for at, who in owner.items() if who == index}


spans = st.lists(st.tuples(points, points).map(lambda p: (min(p), max(p))), max_size=6)


@given(intervals, spans)
def test_exposed_time_is_shared_evenly_and_counted_once(
    exposed: list[Interval], flights: list[Interval]
) -> None:
    in_flight = [Span(key, start, end) for key, (start, end) in enumerate(flights)]
    shares, ownerless_ns = share_exposed(exposed, in_flight)
    assert sum(shares.values()) + ownerless_ns == len(instants(exposed)), "shares add up exactly"
    fair: dict[int, float] = {}
    nobody = 0
    for at in instants(exposed):
        owners = [span.key for span in in_flight if span.start_ns <= at < span.end_ns]
        nobody += not owners
        for owner in owners:
            fair[owner] = fair.get(owner, 0) + 1 / len(owners)
    assert ownerless_ns == nobody
    # Whole nanoseconds cannot always be split evenly: off by less than one a boundary.
    boundaries = 2 * (len(exposed) + len(flights))
    assert set(fair) >= set(shares)
    for owner, ns in fair.items():
        assert shares.get(owner, 0) == pytest.approx(ns, abs=boundaries + 1e-9)


def test_two_collectives_in_one_exposed_instant_share_it() -> None:
    shares, ownerless_ns = share_exposed([(0, 100)], [Span(7, 0, 60), Span(9, 20, 60)])
    assert shares == {7: 20 + 20, 9: 20}
    assert ownerless_ns == 40


def test_an_odd_nanosecond_goes_to_the_earlier_key() -> None:
    assert share_exposed([(0, 3)], [Span(1, 0, 3), Span(2, 0, 3)])[0] == {1: 2, 2: 1}
