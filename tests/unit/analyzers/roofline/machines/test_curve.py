"""Curves of measured times: what lies between the points, beyond them, and what a collective then costs."""

from __future__ import annotations

import csv
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Curve,
    CurvePoint,
    Placement,
    calibrated,
    collective_cost,
    load_fabric,
    measured_cost,
    one_node,
    parse_fabric,
    to_toml,
    with_links,
)
from shardtoll.analyzers.roofline.machines.curve import PER_DOUBLING, curve_of, merged
from shardtoll.ledger.measured.measured import Timings
from tests.shared_inputs import shared


def point(size, time_ns, low=0.9, high=1.2, samples=20):
    return CurvePoint(size, time_ns, max(1, int(time_ns * low)), int(time_ns * high), samples)


def curve(points, op="all_reduce", ranks=4, nodes=1, sharing=1):
    return Curve(op, ranks, nodes, tuple(points), "a test", sharing)


RISING = curve([point(1024, 50_000), point(8192, 60_000), point(65536, 200_000), point(1 << 20, 3_000_000)])


def line(size):
    """A model's time: latency + bytes / bandwidth."""
    return 40_000 + size * 2.5


curves = st.lists(
    st.tuples(st.integers(1, 1 << 40), st.integers(10, 10**12)),
    min_size=2,
    max_size=20,
    unique_by=lambda p: p[0],
)


@given(curves)
def test_at_its_points_a_curve_is_exact(pairs):
    made = curve([point(size, time) for size, time in sorted(pairs)])
    for one in made.points:
        assert made.time_ns(one.message_bytes, line) == pytest.approx(one.time_ns, rel=1e-9)
        band = made.band_ns(one.message_bytes, line)
        assert band == (pytest.approx(one.low_ns, rel=1e-9), pytest.approx(one.high_ns, rel=1e-9))


@given(curves, st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_between_points_a_curve_stays_between_their_times_and_rises_where_they_do(pairs, places):
    pairs = sorted(pairs)
    times = sorted(time for _, time in pairs)
    made = curve([point(size, time) for (size, _), time in zip(pairs, times, strict=True)])
    first, last = math.log(pairs[0][0]), math.log(pairs[-1][0])
    sizes = [math.exp(first + place * (last - first)) for place in sorted(places)]
    sizes = [min(max(size, pairs[0][0]), pairs[-1][0]) for size in sizes]
    found = [made.time_ns(size) for size in sizes]
    for one, other in pairwise(found):
        assert other >= one * (1 - 1e-9)
    assert times[0] * (1 - 1e-9) <= min(found) <= max(found) <= times[-1] * (1 + 1e-9)
    for size, time in zip(sizes, found, strict=True):
        low, high = made.band_ns(size)
        assert low <= time * (1 + 1e-9)
        assert high >= time * (1 - 1e-9)


@given(st.floats(-2, 2), st.floats(1, 1e6), st.floats(8, 1e9))
def test_a_power_of_the_size_is_met_everywhere(power, factor, size):
    # A straight line of the logarithms is what log-log interpolation must give back.
    sizes = [8 * 5**at for at in range(12)]
    times = [(s, round(1e9 * factor * s**power)) for s in sizes if 1e9 * factor * s**power > 1e6]
    made = curve([point(s, time) for s, time in times] or [point(1, 1)])
    if len(made.points) >= 2 and made.inside(size):
        assert made.time_ns(size) == pytest.approx(1e9 * factor * size**power, rel=1e-4)


@given(st.integers(1, 10), st.sampled_from([-1, 1]))
def test_beyond_its_points_a_curve_follows_the_model_and_is_never_clamped(doublings, way):
    edge = RISING.points[-1] if way > 0 else RISING.points[0]
    size = edge.message_bytes * 2.0 ** (way * doublings)
    expected = edge.time_ns * line(size) / line(edge.message_bytes)
    assert RISING.time_ns(size, line) == pytest.approx(expected, rel=1e-9)
    low, high = RISING.band_ns(size, line)
    wider = (1 + PER_DOUBLING) ** doublings
    assert low == pytest.approx(0.9 * expected / wider, rel=1e-3)
    assert high == pytest.approx(1.2 * expected * wider, rel=1e-3)


def test_without_a_model_a_curve_goes_on_as_latency_and_bandwidth_of_its_last_points():
    made = curve([point(size, round(line(size))) for size in (1 << 10, 1 << 16, 1 << 22)])
    for size in (1, 1 << 26):
        assert made.time_ns(size) == pytest.approx(line(size), rel=1e-3)
    flat = curve([point(1024, 50_000), point(2048, 50_000)])
    assert flat.time_ns(1 << 20) == pytest.approx(50_000 * (1 << 20) / 2048, rel=0.01)
    assert curve([point(1024, 50_000)]).time_ns(2048) is None
    assert curve([point(1024, 50_000)]).time_ns(1024) == pytest.approx(50_000)
    assert curve([point(1024, 50_000)]).time_ns(2048, line) is not None


def test_a_model_that_does_not_know_is_not_followed():
    made = curve([point(size, round(line(size))) for size in (1 << 10, 1 << 16)])
    for shape in (lambda size: None, lambda size: 0.0, lambda size: math.inf):
        assert made.time_ns(1 << 20, shape) == pytest.approx(line(1 << 20), rel=1e-3)


def test_points_that_are_not_a_curve_are_refused():
    for points in ([], [point(8, 10), point(8, 20)], [point(9, 10), point(8, 20)], [CurvePoint(8, 5, 6, 7)]):
        with pytest.raises(ValueError, match="curve of all_reduce"):
            curve(points)


def test_a_collective_costs_what_the_same_one_was_measured_to():
    other = curve([point(1024, 1)], ranks=2)
    cost = measured_cost([other, RISING], "all_reduce", 8192, one_node(4), line)
    assert cost is not None
    assert cost.time_ns == pytest.approx(60_000)
    assert (cost.low_ns, cost.high_ns) == (pytest.approx(54_000), pytest.approx(72_000))
    for op, at in (
        ("all_gather", one_node(4)),
        ("all_reduce", one_node(3)),
        ("all_reduce", Placement(4, 2, 2)),
    ):
        assert measured_cost([other, RISING], op, 8192, at, line) is None


def test_a_barrier_has_no_size_and_a_receive_takes_its_sends_time():
    found = measured_cost([curve([point(0, 500)], op="barrier")], "barrier", 123, one_node(4), None)
    assert found is not None
    assert found.time_ns == pytest.approx(500)
    sends = [curve([point(8, 70), point(80, 90)], op="send", ranks=2)]
    assert measured_cost(sends, "recv", 8, one_node(2), None) == measured_cost(
        sends, "send", 8, one_node(2), None
    )


def test_groups_that_share_cards_are_told_from_a_lone_one():
    alone, shared = (curve([point(8, time)], nodes=2, sharing=n) for n, time in ((1, 100), (8, 700)))
    cost = measured_cost([shared, alone], "all_reduce", 8, Placement(4, 2, 2), None)
    assert cost is not None
    assert cost.time_ns == pytest.approx(100)
    assert measured_cost([shared], "all_reduce", 8, Placement(4, 2, 2), None) is None


def test_merging_keeps_the_point_of_most_samples_and_of_as_many_the_later():
    old = curve([point(8, 100, samples=5), point(16, 200, samples=50)])
    new = curve([point(8, 111, samples=5), point(16, 222, samples=5), point(32, 333, samples=5)])
    send = curve([point(8, 1)], op="send", ranks=2)
    one, other = merged([send, old, new])
    assert (one.op, other.op) == ("all_reduce", "send")
    assert [p.time_ns for p in one.points] == [111, 200, 333]


def test_a_calibrated_fabric_is_measured_and_is_the_same_when_saved_and_read():
    draw = random.Random(1)
    timings = [
        Timings(
            op,
            ranks,
            1,
            {s: [round(line(s) * draw.uniform(1, 1.5)) for _ in range(9)] for s in (64, 4096)},
            "x",
        )
        for op in ("all_gather", "all_reduce", "send")
        for ranks in (2, 4)
        if op != "send" or ranks == 2
    ]
    shared = Timings("all_reduce", 4, 2, {64: [9]}, "two hosts", 3)
    made = calibrated(load_fabric("loopback-gloo"), [*timings, shared], "measured on this machine at noon")
    assert made.measured
    assert made.provenance == "measured on this machine at noon"
    assert parse_fabric(to_toml(made), "saved") == made
    assert made.curves[-1] == curve_of(timings[-1])


def test_measured_times_alone_take_the_links_of_the_fabric_that_fits():
    text = """
name = "mine"
title = "two nodes"
provenance = "measured on 2 hosts"
library = "nccl"
measured = true
device_names = ["NVIDIA H100 80GB HBM3"]
[[curve]]
op = "all_reduce"
ranks = 16
nodes = 2
source = "here"
message_bytes = [1048576]
time_ns = [50000]
"""
    alone = parse_fabric(text, "mine.toml")
    fitting = load_fabric("h100x8-ib400")
    whole = with_links(alone, fitting)
    assert (whole.intra, whole.inter, whole.gpu) == (fitting.intra, fitting.inter, fitting.gpu)
    assert (whole.name, whole.curves, whole.measured) == ("mine", alone.curves, True)
    assert whole.provenance.startswith("measured on 2 hosts; links, for what was not measured, of h100x8")
    measured = collective_cost(whole, "all_reduce", 1048576, Placement(16, 2, 8))
    assert measured is not None
    assert (measured.time_ns, measured.basis) == (pytest.approx(50000, rel=1e-4), "measured")
    other = collective_cost(whole, "all_gather", 1048576, Placement(16, 2, 8))
    assert other is not None
    assert other.basis == "transferred"
    assert with_links(whole, fitting) is whole
    assert with_links(alone, UNKNOWN) is alone


def sweeps():
    found = {}
    for path in sorted(shared("sweeps").glob("*.csv")):
        if path.name == "INDEX.csv":
            continue
        with path.open(encoding="utf-8") as file:
            rows = [(int(row["bytes"]), round(float(row["time_us"]) * 1000)) for row in csv.DictReader(file)]
        rows = sorted({size: time for size, time in rows if size > 0 and time > 0}.items())
        if len(rows) >= 10:
            found[path.stem] = rows
    return found


def test_every_second_size_of_published_sweeps_gives_the_sizes_between():
    # The band's width was chosen on such sweeps: one that the curve cannot follow must be in a wide band.
    read = sweeps()
    if not read:
        pytest.skip("the measured sweeps are not here")
    errors, inside = [], []
    for rows in read.values():
        for part in (0, 1):
            made = curve([CurvePoint(size, time, time, time) for size, time in rows[part::2]])
            for size, time in rows[1 - part :: 2]:
                if made.inside(size):
                    low, high = made.band_ns(size)
                    errors.append(abs(made.time_ns(size) / time - 1))
                    inside.append(low <= time <= high)
    errors.sort()
    print(
        f"{len(read)} sweeps, {len(errors)} sizes left out: median error {errors[len(errors) // 2]:.1%}, "
        f"p90 {errors[int(0.9 * len(errors))]:.1%}, in the band {sum(inside) / len(inside):.1%}"
    )
    assert errors[len(errors) // 2] < 0.03
    assert sum(inside) / len(inside) >= 0.9
