"""Prices of groups whose size nobody timed: fitted to the sizes that were, with a band that says how little
that shows if the link's constants are guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.roofline import (
    Cost,
    Curve,
    CurvePoint,
    Fabric,
    collective_cost,
    load_fabric,
    one_node,
)
from tests.unit.analyzers.fabrics import ROUND, predicted_ns

GLOO = load_fabric("loopback-gloo")
SIZES = tuple(64 * 6**power for power in range(8))


def slower(fabric: Fabric, ranks: int, factor: float) -> Fabric:
    """The fabric, on which an all-reduce took `factor` times what the model says."""
    points = []
    for size in SIZES:
        time_ns = round(factor * predicted_ns(fabric, "all_reduce", size, one_node(ranks)))
        points.append(CurvePoint(size, time_ns, time_ns * 95 // 100, time_ns * 105 // 100, 20))
    curve = Curve("all_reduce", ranks, 1, tuple(points), "made for a test")
    return replace(fabric, measured=True, curves=(curve,))


def cost(fabric: Fabric, ranks: int, op: str = "all_reduce") -> Cost:
    found = collective_cost(fabric, op, 1 << 20, one_node(ranks))
    assert found is not None
    return found


def width(of: Cost) -> float:
    return of.high_ns / of.time_ns


def test_guessed_constants_give_way_to_what_was_timed():
    fitted, guessed = cost(slower(GLOO, 4, 12.0), 2), cost(GLOO, 2)
    assert fitted.basis == "transferred"
    assert fitted.time_ns == pytest.approx(12 * guessed.time_ns, rel=0.2)
    # Constants that were learned from published sweeps are held on to.
    learned = replace(load_fabric("h100x8"), curves=())
    assert cost(slower(learned, 4, 12.0), 2).time_ns < 3 * cost(learned, 2).time_ns


def test_the_band_is_wider_the_further_the_size_is_from_those_timed():
    four = slower(GLOO, 4, 12.0)
    assert cost(four, 4).basis == "measured"
    other_op = cost(four, 4, "all_gather")
    twice, four_times = cost(four, 8), cost(four, 16)
    assert other_op.basis == twice.basis == "transferred"
    # gloo between 2 and 4 ranks on 2 cores: fits of the one are up to 8 times off for the other.
    assert width(twice) >= 8 > width(other_op)
    # One doubling more, as its square adds up: 1.5 x (the root of two - 1), e to that.
    assert width(four_times) == pytest.approx(1.86 * width(twice), rel=0.02)
    assert twice.floor_ns <= twice.time_ns / 8
    assert width(cost(four, 2)) == pytest.approx(width(twice), rel=0.01)


@pytest.mark.parametrize("ranks", [8, 64, 1024, 1_000_000])
def test_however_far_the_size_is_the_band_stays_one(ranks: int):
    two = slower(GLOO, 2, 12.0)
    once, far = cost(two, 4), cost(two, ranks)
    assert width(once) == pytest.approx(9.0, rel=0.01)
    # Half as wide again, as logarithms, is the widest that a fit gets: the link itself is known at least.
    assert 9 < width(far) < 20
    assert far.light_ns < far.floor_ns
    assert 0 < far.low_ns <= far.time_ns <= far.high_ns < 1 << 63
    assert far.time_ns < 20 * far.low_ns


def test_bands_of_learned_constants_hold_other_group_sizes_already():
    learned = load_fabric("h100x8")
    four = slower(learned, 4, 1.1)
    assert width(cost(four, 8)) == pytest.approx(width(cost(four, 4, "all_gather")), rel=0.2)


def test_a_fit_to_messages_names_no_group_size():
    from shardtoll.analyzers.roofline import extrapolated

    assert extrapolated(set()) == "extrapolated from messages"
    assert extrapolated({4, 2}) == "extrapolated from measured groups of 2 and 4 ranks"
    assert ROUND.curves == ()
