"""What samples say of a collective: median, band and how sure both are."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.ledger.measured.curve_toml import measured_toml
from shardtoll.ledger.measured.measured import FEW, CurvePoint, Timings, level, summarize, uncertainty

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIZES = [64 * 6**power for power in range(8)]


def truth_ns(size, latency_ns=50_000.0, byte_ns=0.5):
    return latency_ns + size * byte_ns


def drawn(seed, count, *, spread=0.1, late=0.0, sizes=SIZES, scale=1.0):
    """Log-normal times; a share `late` of them is delayed by a time slice, as of a rank not scheduled."""
    draw = random.Random(seed)
    return {
        size: [
            max(
                1,
                round(
                    scale * truth_ns(size) * math.exp(draw.gauss(0, spread))
                    + (draw.uniform(1e6, 4e6) if draw.random() < late else 0)
                ),
            )
            for _ in range(count)
        ]
        for size in sizes
    }


def timings(times_ns, op="all_reduce", ranks=4, nodes=1):
    return Timings(op, ranks, nodes, times_ns, "a test")


def held(points, times_ns, scale=1.0):
    """The share of times inside the band, scaled."""
    bands = {point.message_bytes: (point.low_ns * scale, point.high_ns * scale) for point in points}
    inside = [bands[size][0] <= time <= bands[size][1] for size in times_ns for time in times_ns[size]]
    return sum(inside) / len(inside)


@pytest.mark.parametrize("late", [0.0, 0.3])
@pytest.mark.parametrize("count", [7, 20, 60])
def test_the_band_holds_nine_of_ten_times_to_come_and_a_halved_one_does_not(count, late):
    shares, halved = [], []
    for seed in range(10):
        points = summarize(timings(drawn(seed, count, late=late)))
        new = drawn(1000 + seed, 100, late=late)
        shares.append(held(points, new))
        halved.append(held(points, new, 0.5))
    assert sum(shares) / len(shares) > 0.93
    assert min(shares) > 0.85
    # With time slices lost the band must be wide at its upper end, so half of it still holds some.
    assert sorted(halved)[5] < (0.6 if late == 0.0 else 0.9)


def test_without_delays_the_band_is_no_wider_than_its_noise():
    points = summarize(timings(drawn(1, 40, spread=0.05)))
    # Nine of ten lie within 1.18 of each other at a spread of 5 %.
    assert all(point.high_ns / point.low_ns < 1.5 for point in points)


def test_few_outliers_move_neither_median_nor_floor():
    clean = drawn(3, 21, spread=0.02)
    spoilt = {size: [*times[:-2], times[-2] * 50, times[-1] * 90] for size, times in clean.items()}
    for before, after in zip(summarize(timings(clean)), summarize(timings(spoilt)), strict=True):
        assert after.time_ns == pytest.approx(before.time_ns, rel=0.02)
        assert after.low_ns == pytest.approx(before.low_ns, rel=0.1)


def test_a_drift_between_the_halves_widens_the_band_until_each_holds_the_other():
    early, later = drawn(5, 20, spread=0.02), drawn(6, 20, spread=0.02, scale=1.6)
    both = {size: early[size] + later[size] for size in SIZES}
    points = summarize(timings(both))
    steady = summarize(timings(drawn(5, 40, spread=0.02)))
    for point, calm in zip(points, steady, strict=True):
        assert point.high_ns / point.low_ns > 1.5 * calm.high_ns / calm.low_ns
    assert held(points, drawn(7, 50, spread=0.02, scale=1.6)) > 0.9
    assert held(points, drawn(8, 50, spread=0.02)) > 0.9


samples = st.dictionaries(
    st.integers(0, 1 << 34),
    st.lists(st.integers(1, 10**12), min_size=1, max_size=30),
    min_size=1,
    max_size=12,
)


@given(samples)
def test_whatever_the_samples_a_point_is_sound(times_ns):
    points = summarize(timings(times_ns))
    assert [point.message_bytes for point in points] == sorted(times_ns)
    for point in points:
        assert 1 <= point.low_ns <= point.time_ns <= point.high_ns
        assert point.samples == len(times_ns[point.message_bytes])
        if min(map(len, times_ns.values())) < FEW:
            own = times_ns[point.message_bytes]
            assert (point.low_ns, point.high_ns) == (min(own), max(own))


@given(st.lists(st.lists(st.integers(1, 10**12), min_size=FEW, max_size=12), min_size=2, max_size=8))
def test_curves_of_many_samples_rise_with_the_message(columns):
    points = summarize(timings({1 << at: times for at, times in enumerate(columns)}))
    for name in ("time_ns", "low_ns", "high_ns"):
        values = [getattr(point, name) for point in points]
        assert values == sorted(values), name


def test_one_sample_is_its_own_band():
    (point,) = summarize(timings({1024: [777]}))
    assert (point.time_ns, point.low_ns, point.high_ns, point.samples) == (777, 777, 777, 1)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_the_medians_interval_holds_the_true_median(seed):
    # 95 % of the time each: of 40 draws at least 30 (a chance of one in a million for fewer).
    good = 0
    for at in range(40):
        draw = random.Random(seed * 100 + at)
        times = [round(1e6 * math.exp(draw.gauss(0, 0.3))) for _ in range(31)]
        width = uncertainty(times)
        assert width is not None
        ordered = sorted(times)
        good += abs(ordered[15] - 1e6) <= 2 * width * ordered[15]
    assert good >= 30


def test_the_medians_interval_shrinks_with_samples_and_needs_six():
    assert uncertainty([5, 5, 5, 5, 5]) is None
    assert uncertainty([5] * 6) == 0
    few, many = (uncertainty(drawn(1, count, sizes=[64])[64]) for count in (12, 400))
    assert few is not None
    assert many is not None
    assert many < few / 2


@pytest.mark.parametrize(
    ("op", "ranks", "nodes", "times_ns"),
    [
        ("allreduce", 2, 1, {8: [1]}),
        ("send", 1, 1, {8: [1]}),
        ("send", 2, 3, {8: [1]}),
        ("send", 2, 1, {}),
        ("send", 2, 1, {8: []}),
        ("send", 2, 1, {8: [0]}),
        ("send", 2, 1, {-8: [5]}),
    ],
)
def test_timings_that_cannot_be_are_refused(op, ranks, nodes, times_ns):
    with pytest.raises(ValueError, match=r"unknown op|cannot be|missing or not above"):
        Timings(op, ranks, nodes, times_ns, "a test")


def test_a_stretch_of_one_time_is_told_when_it_is_long():
    def points(*times_ns, first=64):
        return [CurvePoint(first * 4**at, time, time, time) for at, time in enumerate(times_ns)]

    assert level(points(1, 2, 2, 2, 2, 9)) == (256, 256 * 64)
    assert level(points(1, 2, 2, 2, 9)) is None
    assert level(points(1, 1, 1, 5, 7, 7)) is None
    assert level([CurvePoint(0, 5, 5, 5), *points(5)]) is None
    assert level(points(5, 4, 4, 5)) is None
    assert level([]) is None


def test_the_toml_holds_the_points_and_is_toml_whatever_the_names():
    one = timings({8: [5, 6], 64: [9]})
    head = {"name": 'a "b"\n\x7f', "backends": ["gloo", "é"]}
    data = tomllib.loads(measured_toml(head, [one]))
    assert data["name"] == head["name"]
    assert data["backends"] == head["backends"]
    assert data["measured"] is True
    (curve,) = data["curve"]
    assert curve == {
        "op": "all_reduce",
        "ranks": 4,
        "nodes": 1,
        "source": "a test",
        "message_bytes": [8, 64],
        "time_ns": [5, 9],
        "low_ns": [5, 9],
        "high_ns": [6, 9],
        "samples": [2, 1],
    }
