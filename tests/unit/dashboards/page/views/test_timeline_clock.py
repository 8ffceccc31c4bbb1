"""Gaps between steps are folded on the timeline, and its clock goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.dashboards.page.views import timeline
from shardtoll.dashboards.page.views.timeline_clock import clock
from shardtoll.ledger import Report
from tests import sample_reports
from tests.gapped import MS, gapped


def starts(report: Report, **more: object) -> list[float]:
    return timeline.figure(report, **more).columns["steps"]["start"]


def test_long_gaps_are_drawn_as_a_tenth_of_the_median_step():
    # Steps of 10 ms begin at 0, 12, 1,000 and 61,000 ms: 2 ms stay, 978 ms and 59,990 ms become 1 ms each.
    report = gapped(0, 12, 1_000, 61_000)
    figure = timeline.figure(report)
    assert figure.columns["steps"]["start"] == [0, 12, 23, 34]
    assert figure.columns["calls"]["start"] == [1, 13, 24, 35]
    assert figure.columns["clock"] == {
        "from": [0, 1_000, 61_000],
        "to": [22, 1_010, 61_010],
        "at": [0, 23, 34],
    }
    assert [(stripe["x0"], stripe["x1"]) for stripe in figure.layout["shapes"]] == [(22, 23), (33, 34)]
    assert figure.notes == [
        "2 gaps between steps, 61.0 s in sum, are folded to grey stripes. "
        "The numbers at the axis are the run's clock."
    ]


def test_a_gap_of_at_most_half_a_step_stays():
    figure = timeline.figure(gapped(0, 15, 30))
    assert figure.columns["steps"]["start"] == [0, 15, 30]
    assert "clock" not in figure.columns
    assert figure.layout["shapes"] == []
    assert figure.notes == []


def test_a_collective_between_steps_is_in_no_folded_gap():
    report = gapped(0, 1_000, between=500)
    figure = timeline.figure(report)
    assert figure.columns["calls"]["start"] == [1, 11, 16]
    assert figure.columns["clock"]["from"] == [0, 500, 1_000]
    assert timeline.figure(gapped(0, 1_000)).notes == [
        "1 gap between steps, 990 ms, is folded to a grey stripe. "
        "The numbers at the axis are the run's clock."
    ]


def test_times_beyond_what_a_float_holds_keep_their_nanoseconds():
    since_1970 = 1_790_000_000_000_000_001
    time = clock(gapped(0, 1_000, epoch_ns=since_1970))
    (place,) = time.drawn(np.array([since_1970 + 1_000 * MS + 7])) - since_1970
    assert place == 11 * MS + 7


def test_bars_of_folded_collectives_end_at_a_folded_gap():
    figure = timeline.figure(gapped(0, 1_000, 2_000), drawn=0)
    bars = figure.columns["folded"]
    assert (bars["start"], bars["length"]) == ([1, 12, 23], [3, 3, 3])


def test_a_part_of_a_run_is_drawn_by_the_clock_of_the_whole():
    report = gapped(0, 1_000, 2_000)
    part = replace(report, tables={**report.tables, "steps": report.tables["steps"].slice(2)})
    assert starts(part, time=clock(report)) == [22]


@pytest.mark.parametrize("report", [sample_reports.empty(), sample_reports.unknown()])
def test_without_known_times_there_is_nothing_to_fold(report: Report):
    assert clock(report).columns() == {}
    assert clock(report).notes() == []
