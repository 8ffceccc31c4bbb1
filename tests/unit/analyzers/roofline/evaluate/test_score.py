"""Errors by size band, against values worked out by hand."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.roofline.evaluate.score import Scored, band_of, by_band, noise, score
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, SweepPoint

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("size", "band"),
    [
        (0, "<=64K"),
        (64 * KIB, "<=64K"),
        # 540 x 4 GPUs have no size of exactly 128 KiB.
        (128 * KIB - 2_000, "128K-8M"),
        (8 * MIB, "128K-8M"),
        (16 * MIB - 32, "16-256M"),
        (256 * MIB, "16-256M"),
        (512 * MIB - 32, ">=512M"),
        (1 << 34, ">=512M"),
    ],
)
def test_bands(size: int, band: str):
    assert band_of(size) == band


def point(size: int, measured: float, predicted: float, low: float = 0, high: float = 1e12) -> Scored:
    return Scored(size, measured, predicted, low, high)


def test_errors_are_relative_to_the_measurement_and_unsigned():
    assert point(8, 100, 150).error == 0.5
    assert point(8, 100, 50).error == 0.5
    assert point(8, 200, 150).error == 0.25


def test_a_measurement_on_the_edge_is_inside():
    assert point(8, 100, 100, 100, 120).inside
    assert point(8, 120, 100, 100, 120).inside
    assert not point(8, 121, 100, 100, 120).inside
    assert not point(8, 99, 100, 100, 120).inside


def test_median_and_p90_are_interpolated():
    errors = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    found = score([point(8, 100, 100 + 100 * error, 0, 150) for error in errors])
    assert found is not None
    assert found.count == 11
    assert found.median == pytest.approx(0.5)
    assert found.p90 == pytest.approx(0.9)
    assert found.inside == 1.0
    # Between the two middle ones, and nine tenths of the way.
    found = score([point(8, 100, 100), point(8, 100, 120, 110, 120)])
    assert found is not None
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.18)
    assert found.inside == 0.5


def test_nothing_scored_is_none():
    assert score([]) is None
    found = by_band([point(8, 100, 110)])
    assert found["16-256M"] is None
    assert found["<=64K"] == found["all"]
    assert list(found) == ["<=64K", "128K-8M", "16-256M", ">=512M", "<512M", "all"]


def test_noise_is_what_the_two_columns_differ_by():
    points = (SweepPoint(8, 100, 110), SweepPoint(16, 100, 70), SweepPoint(1 << 30, 100, None))
    found = noise([Sweep("hw", 1, 8, "all_reduce", points)])
    assert found["<=64K"] == pytest.approx((0.2, 0.28))
    assert found["all"] == pytest.approx((0.2, 0.28))
    assert found[">=512M"] is None


def test_the_width_is_the_median_of_high_over_low():
    """A band that holds everything is seen to be wide; an end of 0 ns does not make it endless."""
    found = score([point(8, 100, 100, 50, 200), point(8, 100, 100, 80, 120), point(8, 100, 100, 0, 1000)])
    assert found is not None
    assert found.inside == 1.0
    assert found.width == pytest.approx(4.0)
    assert point(8, 100, 100, 0, 1000).width == 1000
