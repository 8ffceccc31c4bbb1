"""The made-up report that sizes and times are measured with holds the ledger's own rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardtoll.dashboards.page.page import render
from shardtoll.ledger import Report
from shardtoll.ledger.records.record import CONSERVATION_TOLERANCE
from shardtoll.ledger.tables.tables import SCHEMAS, check, check_values


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from synthetic.report import synthetic_report

    return synthetic_report


@pytest.mark.parametrize(("ranks", "collectives", "steps"), [(1, 120, 3), (6, 97, 4), (16, 300, 5)])
def test_it_is_a_sound_report(made, ranks: int, collectives: int, steps: int):
    report = made(ranks, collectives, steps)
    assert made(ranks, collectives, steps) == report
    for name in SCHEMAS:
        check(name, report.tables[name])
        check_values(name, report.tables[name])
    assert Report.from_json(report.to_json()) == report
    frame, rows = report.steps, report.collectives
    assert (len(frame), len(rows)) == (ranks * steps, ranks * collectives)
    parts = ["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns"]
    off = (frame[parts].sum(axis=1) - frame["duration_ns"]).abs()
    assert (frame[parts] >= 0).all(axis=None)
    assert (off <= CONSERVATION_TOLERANCE * frame["duration_ns"]).all()
    exposed = rows.groupby(["rank", "step"])["exposed_ns"].sum()
    assert (exposed.to_numpy() == frame.set_index(["rank", "step"])["exposed_comm_ns"].to_numpy()).all()
    # Who meets ends together, and the last to come does not wait.
    ends = (rows["start_ns"] + rows["duration_ns"]).groupby([rows["group"], rows["seq"]])
    waits = rows.groupby(["group", "seq"])["wait_ns"].min()
    assert (ends.nunique() == 1).all()
    assert np.all(waits == 0)


def test_a_page_shows_it(made):
    report = made(4, 100, 2, findings=16)
    assert len(report.findings) == 16
    assert all(finding.title in render(report) for finding in report.findings[:3])


def test_more_steps_than_calls_are_refused(made):
    with pytest.raises(ValueError, match="5 collectives in 9 steps"):
        made(2, 5, 9)
