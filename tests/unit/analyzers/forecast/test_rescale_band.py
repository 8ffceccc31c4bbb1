"""A collective without a price widens the band of a rescaled run; it does not make it certain."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.forecast.rescale.recorded import Sent
from shardtoll.analyzers.forecast.rescale.scaling import Machine, _times, scale_run
from shardtoll.analyzers.roofline import load_fabric
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

MACHINE = Machine(load_fabric("h100x8-ib400"), "h100-sxm", 8)


def times(world: int, message_bytes: int | None, notes: list[str]) -> tuple[float, float, float]:
    sent = Sent("all_reduce", "dp", 8, None, message_bytes, 0, 1000, 1000, 0)
    return _times(sent, 8, world, 1.0, MACHINE, MACHINE, {}, notes)


def test_an_unknown_price_opens_the_band_and_says_so():
    notes: list[str] = []
    assert times(16, None, notes) == (0.0, 1000.0, pytest.approx(20_000.0))
    assert len(notes) == 1
    assert "the price of all_reduce over group of 8 is unknown" in notes[0]


def test_a_known_price_and_an_unchanged_group_need_no_note():
    notes: list[str] = []
    low, expected, high = times(16, 1 << 20, notes)
    assert 0 < low <= expected <= high
    assert times(8, None, notes) == (1000.0, 1000.0, 1000.0)
    assert notes == []


def test_the_parts_of_a_forecast_add_up_to_its_step():
    rows = [
        collective(step=number, rank=rank, start_ns=30 * MS, duration_ns=40 * MS, exposed_ns=40 * MS)
        for number in (0, 1)
        for rank in (0, 1)
    ]
    report = run(ledger(rows, steps=[step(number, rank) for number in (0, 1) for rank in (0, 1)]))
    point = scale_run(report, "job", MACHINE, MACHINE, 2).weak[0]
    assert (point.compute_ns, sum(point.exposed_ns.values()), point.other_ns) == (50 * MS, 40 * MS, 10 * MS)
    assert point.step_ns.expected == 100 * MS
