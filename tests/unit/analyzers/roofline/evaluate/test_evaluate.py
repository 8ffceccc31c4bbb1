"""Predictions beside measurements: what each mode may know, and that it knows no size that is scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardtoll.analyzers.roofline import Cost, Fabric, Placement, collective_cost, load_fabric
from shardtoll.analyzers.roofline.evaluate.evaluate import (
    calibrated,
    fabric_of,
    not_fitted,
    refused,
    timings_of,
    transferred,
)
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, SweepPoint, parse_sweep
from tests.unit.analyzers.sweeps import straight, sweep_text

SLOW = straight(40, 150)
"""Three times as slow as the shipped fabric says."""


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return load_fabric("h100x8-ib400")


def sweep_of(time_us: Callable[[int], float] = SLOW, **changed: object) -> Sweep:
    return parse_sweep(sweep_text(time_us, **changed), "x.csv")


def with_time(sweep: Sweep, at: int, times: float) -> Sweep:
    """Return the sweep with one measured time changed."""
    points = list(sweep.points)
    points[at] = replace(points[at], time_ns=points[at].time_ns * times)
    return replace(sweep, points=tuple(points))


def test_nothing_fitted_is_what_the_fabric_says(fabric: Fabric):
    sweep = sweep_of()
    found = not_fitted(sweep, fabric)
    assert (found.mode, found.fabric, found.fitted_bytes, found.reason) == ("model", "h100x8-ib400", (), None)
    assert [point.message_bytes for point in found.points] == list(sweep.sizes)
    for point in found.points:
        cost = collective_cost(fabric, "all_reduce", point.message_bytes, Placement(16, 2, 8))
        assert point.cost == cost
    assert not_fitted(with_time(sweep, 3, 9), fabric).points[3].cost == found.points[3].cost


def test_calibrated_fits_the_first_third_fifth_size(fabric: Fabric):
    sweep = sweep_of()
    found = calibrated(sweep, fabric)
    assert found.mode == "calibrated"
    assert found.fitted_bytes == sweep.sizes[::2]
    assert tuple(point.message_bytes for point in found.points) == sweep.sizes[1::2]


def test_a_calibrated_model_says_what_was_measured(fabric: Fabric):
    """Times are latency and bytes over a rate; between sizes x4 apart interpolation is within a tenth."""
    for point in calibrated(sweep_of(), fabric).scored:
        assert point.error < 0.1


def test_a_scored_time_does_not_change_its_prediction(fabric: Fabric):
    sweep = sweep_of()
    before = [point.cost for point in calibrated(sweep, fabric).points]
    assert None not in before
    for at in range(1, len(sweep.points), 2):
        changed = calibrated(with_time(sweep, at, 7), fabric)
        assert [point.cost for point in changed.points] == before
        assert changed.points[at // 2].measured_ns == 7 * sweep.points[at].time_ns
    # It can fail: a fitted time does change predictions.
    assert [point.cost for point in calibrated(with_time(sweep, 8, 7), fabric).points] != before


def test_a_size_measured_twice_is_fitted_or_scored_with_both(fabric: Fabric):
    sizes = (1024, 1024, 4096, 4096, 16384)
    found = calibrated(sweep_of(sizes=sizes), fabric)
    assert found.fitted_bytes == (1024, 16384)
    assert [point.message_bytes for point in found.points] == [4096, 4096]


def test_sizes_within_a_hundredth_are_one(fabric: Fabric):
    sizes = (1 << 18, (1 << 20) - 32, 1 << 20, (1 << 20) + 4, 1 << 22, (1 << 22) + 40)
    found = calibrated(sweep_of(sizes=sizes), fabric)
    assert found.fitted_bytes == (sizes[0], *sizes[4:])
    assert tuple(point.message_bytes for point in found.points) == sizes[1:4]
    apart = calibrated(sweep_of(sizes=(1000, 1011, 1023)), fabric)
    assert apart.fitted_bytes == (1000, 1023)


def test_one_size_leaves_none_to_score(fabric: Fabric):
    found = calibrated(sweep_of(sizes=(1024,)), fabric)
    assert (found.points, found.fitted_bytes) == ((), (1024,))
    assert found.reason == "one size only: there is none left to score; give a sweep of two sizes or more"


def test_transferred_knows_the_other_sweep_only(fabric: Fabric):
    """Of 4 nodes predicted from 2, half as fast as the shipped figures: nearer than without."""
    near, far = sweep_of(straight(80, 120)), sweep_of(straight(120, 110), nodes=4, gpus=32)
    found = transferred(far, fabric, [near])
    assert found.mode == "transferred"
    assert found.fitted_bytes == ()
    assert len(found.points) == len(far.points)
    again = transferred(with_time(far, 5, 3), fabric, [near])
    assert [point.cost for point in again.points] == [point.cost for point in found.points]
    plain = not_fitted(far, fabric)
    errors = [sum(point.error for point in one.scored[-4:]) for one in (found, plain)]
    assert errors[0] < errors[1]


def test_what_the_model_refuses_is_said_with_a_reason(fabric: Fabric):
    lone = replace(fabric, inter=None)
    found = not_fitted(sweep_of(), lone)
    assert all(point.cost is None for point in found.points)
    assert found.scored == ()
    assert found.reason == "fabric h100x8-ib400 has no network between nodes; name one with --fabric that has"
    bare = not_fitted(sweep_of(nodes=1, gpus=8), replace(lone, intra=None))
    assert (
        bare.reason
        == "fabric h100x8-ib400 has no link between ranks of a node; name one with --fabric that has"
    )
    whole = refused(sweep_of(), "model", "who knows")
    assert [point.cost for point in whole.points] == [None] * len(whole.points)


def test_a_predictor_of_ones_own_is_asked(fabric: Fabric):
    asked = []

    def predict(given: Fabric, op: str, size: int, at: Placement) -> Cost | None:
        asked.append((given.curves, op, size, at))
        return None

    sweep = sweep_of(sizes=(8, 16))
    found = not_fitted(sweep, fabric, predict)
    assert found.reason is not None
    assert found.reason.startswith("the model does not predict this collective here; ")
    calibrated(sweep, fabric, predict)
    assert [entry[2] for entry in asked] == [8, 16, 16]
    assert asked[0][1:] == ("all_reduce", 8, Placement(16, 2, 8))
    assert [len(entry[0]) for entry in asked] == [0, 0, 1]


def test_a_calibration_has_all_times_of_each_size(fabric: Fabric):
    points = (SweepPoint(8, 10.4, None), SweepPoint(8, 30, None), SweepPoint(16, 0.2, None))
    found = timings_of(Sweep("hw", 2, 16, "all_gather", points), fabric)
    assert found is not None
    assert (found.op, found.ranks, found.nodes, found.source) == ("all_gather", 16, 2, "hw")
    assert found.times_ns == {8: [10, 30], 16: [1]}
    assert timings_of(Sweep("hw", 1, 1, "all_gather", points), fabric) is None


def test_the_fabric_is_what_the_hardware_says():
    fabric, sure = fabric_of(sweep_of())
    assert fabric is not None
    assert fabric.name == "h100x8-ib400"
    assert sure
    assert fabric_of(sweep_of(hardware="a machine"))[0] is None


def test_a_curve_of_another_run_has_the_band_of_a_transfer(fabric: Fabric):
    """Two clusters of one kind, with the same op, ranks and nodes: one is no measurement of the other."""
    sister = transferred(sweep_of(straight(41, 145)), fabric, [sweep_of()])
    nodes = transferred(sweep_of(straight(41, 145)), fabric, [sweep_of(nodes=4, gpus=32)])
    for one, other in zip(sister.points, nodes.points, strict=True):
        assert one.cost is not None
        assert other.cost is not None
        assert (one.cost.basis, other.cost.basis) == ("transferred", "transferred")
        assert one.cost.time_ns == pytest.approx(SLOW(one.message_bytes) * 1e3, rel=1e-3)
        # Not narrower than what is said of another number of nodes, of a neighbour.
        assert one.cost.low_ns / one.cost.time_ns <= 1.001 * other.cost.low_ns / other.cost.time_ns
        assert one.cost.high_ns / one.cost.time_ns >= 0.999 * other.cost.high_ns / other.cost.time_ns
        assert one.cost.light_ns <= one.cost.low_ns
    assert sister.alone is None
    # A size of the very same sweep stays measured.
    assert {point.cost.basis for point in calibrated(sweep_of(), fabric).points if point.cost} == {"measured"}


def test_one_node_tells_nothing_of_the_network_and_says_so(fabric: Fabric):
    inside = sweep_of(nodes=1, gpus=8)
    found = transferred(sweep_of(), fabric, [inside])
    assert found.alone == (
        "nothing of a sweep inside one node carries over to the network: predicted by the model alone"
    )
    assert [point.cost for point in found.points] == [
        point.cost for point in not_fitted(sweep_of(), fabric).points
    ]
    other_way = transferred(inside, fabric, [sweep_of()])
    assert other_way.alone is not None
    assert other_way.alone.startswith("nothing of a sweep over the network")
    assert transferred(sweep_of(), fabric, [inside, sweep_of(nodes=4, gpus=32)]).alone is None
