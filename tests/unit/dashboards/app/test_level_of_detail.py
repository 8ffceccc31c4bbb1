"""The timeline's window: against plain Python on a report of known times, and bounded in what it holds."""

from __future__ import annotations

import pytest

from shardtoll.dashboards.app.level_of_detail import LEAST_RANKS, window
from shardtoll.dashboards.page.views import timeline
from tests import sample_reports
from tests.place_rows import assert_same_findings
from tests.sample_reports import MS


@pytest.mark.parametrize(("start_ms", "end_ms"), [(0, 10_000), (3, 9), (24.1, 24.2), (-5, -1), (9, 9)])
def test_a_window_holds_all_that_touches_it(start_ms: float, end_ms: float):
    report = sample_reports.report()
    start_ns, end_ns = int(start_ms * MS), int(end_ms * MS)
    seen = window(report, start_ns, end_ns)
    for name in ("collectives", "steps"):
        expected = [
            row
            for row in report.tables[name].to_pylist()
            if None not in (row["start_ns"], row["duration_ns"])
            and row["start_ns"] <= end_ns
            and row["start_ns"] + row["duration_ns"] >= start_ns
        ]
        if name == "steps":
            ranks = {row["rank"] for row in seen.report.tables["collectives"].to_pylist()}
            expected = [row for row in expected if row["rank"] in ranks]
        assert seen.report.tables[name].to_pylist() == expected
    assert seen.notes == ()
    assert_same_findings(report, seen.report)


def test_the_whole_of_a_small_run_is_the_report_itself():
    report = sample_reports.report()
    assert window(report).report is report
    assert set(window(report, ranks=(1, 2)).report.collectives["rank"]) == {1, 2}


def test_of_a_run_that_does_not_fit_the_dearest_ranks_are_shown_and_it_is_said():
    report = sample_reports.many(64, 100)
    rows = report.tables["collectives"].num_rows
    seen = window(report, most=rows // 4)
    kept = seen.report.collectives
    assert len(kept) <= rows // 4
    assert f"{kept['rank'].nunique()} of 64 ranks are shown" in seen.notes[0]
    assert kept["rank"].nunique() == 16
    # All the collectives of a rank that is shown, and its steps.
    counts = report.collectives.groupby("rank").size()
    assert (kept.groupby("rank").size() == counts[counts.index.isin(kept["rank"])]).all()
    exposed = report.collectives.groupby("rank")["exposed_ns"].sum()
    about = {rank for one in report.findings if len(one.ranks) <= 4 for rank in one.ranks}
    others = sorted(set(exposed.index) - set(kept["rank"]))
    free = sorted(set(kept["rank"]) - about)
    assert not others or not free or exposed[free].min() >= exposed[others].max()
    assert window(report, most=1).report.collectives["rank"].nunique() == LEAST_RANKS
    assert window(report, most=rows).notes == ()


def test_a_window_is_drawn_one_by_one_where_the_whole_is_not():
    report = sample_reports.many(8, 100)
    whole = timeline.figure(report, 50)
    zoomed = timeline.figure(window(report, 0, MS // 2).report, 50)
    assert any("folded" in note for note in whole.notes)
    assert not any("folded" in note for note in zoomed.notes)
    touching = window(report, 0, MS // 2).report.tables["collectives"].num_rows
    assert len(zoomed.columns["calls"]["row"]) == touching < 50
