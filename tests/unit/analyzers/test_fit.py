"""The calibration fit: what it recovers, what it ignores, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    MeasuredPoint,
    collective_cost,
    fit_fabric,
    load_fabric,
    one_node,
    parse_fabric,
    to_toml,
)
from shardtoll.ledger import FabricError
from tests.unit.analyzers.fabrics import ROUND, link, quantity

SIZES = [1 << power for power in range(10, 26, 3)]
BASE = load_fabric("loopback-gloo")
OPS = ("all_reduce", "all_gather", "broadcast")


def points_of(fabric, ops=OPS, groups=(2, 4), sizes=SIZES, slower=1.0):
    points = []
    for op in ops:
        for ranks in groups:
            for size in sizes:
                cost = collective_cost(fabric, op, size, one_node(ranks))
                assert cost is not None
                points.append(MeasuredPoint(op, ranks, size, round(cost.time_ns * slower)))
    return points


# broadcast only between two: there the chain that is fitted and the tree are the same.
@given(step_us=st.floats(1, 500), gbps=st.floats(0.1, 100))
def test_exact_points_give_back_the_fabric_that_made_them(step_us, gbps):
    truth = replace(ROUND, intra=link(0, step_us * 1000, gbps))
    fitted = fit_fabric(points_of(truth, groups=(2,)), BASE, "measured here")
    for rates in (fitted.intra.default, fitted.intra.rates("all_reduce"), fitted.intra.rates("all_gather")):
        assert rates.step_latency_ns.value == pytest.approx(step_us * 1000, rel=0.01)
        assert rates.bandwidth_gbps.value == pytest.approx(gbps, rel=0.01)


def test_slow_repeats_and_outliers_do_not_move_the_floor():
    truth = replace(ROUND, intra=link(0, 50_000, 2))
    clean = points_of(truth, ops=("all_reduce",))
    noisy = clean + points_of(truth, ops=("all_reduce",), slower=3.0)
    # Two of twelve points were spoilt on every repeat.
    spoilt = [
        replace(point, time_ns=point.time_ns * 20) if number % 12 in (2, 7) else point
        for number, point in enumerate(noisy)
    ]
    fitted = fit_fabric(spoilt, BASE, "measured here")
    rates = fitted.intra.rates("all_reduce")
    assert rates.step_latency_ns.value == pytest.approx(50_000, rel=0.02)
    assert rates.bandwidth_gbps.value == pytest.approx(2, rel=0.02)


@given(st.lists(st.floats(1.0, 4.0), min_size=12, max_size=12))
def test_the_floor_lies_under_nine_of_ten_best_times(factors):
    truth = replace(ROUND, intra=link(0, 50_000, 2))
    points = [
        replace(point, time_ns=round(point.time_ns * factor))
        for point, factor in zip(points_of(truth, ops=("all_reduce",)), factors, strict=True)
    ]
    fitted = fit_fabric(points, BASE, "measured here")
    above = 0
    for point in points:
        cost = collective_cost(fitted, point.op, point.message_bytes, one_node(point.group_size))
        assert cost is not None
        above += cost.time_ns > point.time_ns * 1.001
    # A quantile line of twelve points has at most ceil(0.1 x 12) of them under it.
    assert above <= 2


def test_a_fitted_fabric_says_it_is_measured_and_survives_being_saved():
    fitted = fit_fabric(points_of(ROUND), BASE, "measured on this machine at noon")
    assert fitted.measured
    assert fitted.provenance == "measured on this machine at noon"
    assert fitted.name == BASE.name
    assert fitted.guesses == ()
    assert parse_fabric(to_toml(fitted), "saved") == fitted


def test_ops_that_were_not_measured_take_the_line_through_all_points():
    fitted = fit_fabric(points_of(ROUND, ops=("all_reduce",)), BASE, "measured")
    assert set(fitted.intra.per_op) == {"all_reduce"}
    assert fitted.intra.rates("scatter") == fitted.intra.default
    assert "all ops" in fitted.intra.default.step_latency_ns.source


def test_sizes_outside_the_sweep_follow_the_model_and_are_not_clamped():
    fitted = fit_fabric(points_of(replace(ROUND, intra=link(0, 50_000, 2))), BASE, "measured")
    huge = collective_cost(fitted, "all_reduce", 1 << 32, one_node(2))
    tiny = collective_cost(fitted, "all_reduce", 1, one_node(2))
    assert huge is not None
    assert tiny is not None
    assert huge.time_ns == pytest.approx((1 << 32) / 2, rel=0.02)
    assert tiny.time_ns == pytest.approx(100_000, rel=0.02)


def test_bandwidth_that_was_not_shown_stays_the_bases_with_its_source():
    points = [MeasuredPoint("all_reduce", 2, size, 100_000) for size in (8, 16)]
    fitted = fit_fabric(points, BASE, "measured")
    assert fitted.intra.rates("all_reduce").bandwidth_gbps == BASE.intra.rates("all_reduce").bandwidth_gbps
    assert fitted.guesses != ()


def test_barriers_are_fitted_as_empty_all_reduces():
    truth = replace(ROUND, intra=link(0, 50_000, 2))
    # A sweep may have noted a size beside a barrier: it moves no bytes all the same.
    barriers = [MeasuredPoint("barrier", 4, size, 300_000) for size in (0, 1 << 20)]
    points = [*points_of(truth, ops=("all_reduce",)), *barriers]
    fitted = fit_fabric(points, BASE, "measured")
    cost = collective_cost(fitted, "barrier", None, one_node(4))
    assert cost is not None
    assert cost.time_ns == pytest.approx(300_000, rel=0.02)


def test_too_little_is_refused():
    with pytest.raises(FabricError, match="fewer than two message sizes"):
        fit_fabric([], BASE, "measured")
    with pytest.raises(FabricError, match="fewer than two message sizes"):
        fit_fabric([MeasuredPoint("send", 2, 8, 100)] * 5, BASE, "measured")


def test_groups_wider_than_a_host_are_refused():
    base = replace(ROUND, ranks_per_node=quantity(2))
    with pytest.raises(FabricError, match="groups of 4 ranks span hosts of 2"):
        fit_fabric(points_of(ROUND), base, "measured")


@pytest.mark.parametrize(
    "given_values",
    [("allreduce", 2, 8, 100), ("send", 1, 8, 100), ("send", 2, -1, 100), ("send", 2, 8, 0)],
)
def test_a_point_that_cannot_be_is_refused(given_values):
    with pytest.raises(ValueError, match=r"unknown op|not a measured"):
        MeasuredPoint(*given_values)
