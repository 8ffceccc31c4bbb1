"""Reports of earlier versions: what they lack is told by their other columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardtoll.ledger import Report
from tests import sample_reports


def written(**columns: Any) -> str:
    """A report as an earlier version wrote it: without the column that came later."""
    document = json.loads(sample_reports.report().to_json())
    for row in document["steps"]:
        row.pop("exposed_unsplit_ns")
        row.update(columns)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("waiting", "moving", "rest"), [(0, 0, "all"), (3, 4, "less"), (None, 4, None), (10**12, 5, 0)]
)
def test_what_waiting_and_moving_leave_is_neither(waiting: int | None, moving: int, rest: Any):
    steps = Report.from_json(written(exposed_wait_ns=waiting, exposed_move_ns=moving)).tables["steps"]
    for row in steps.to_pylist():
        exposed = row["exposed_comm_ns"]
        expected = {"all": exposed, "less": exposed - 7}.get(rest, rest) if isinstance(rest, str) else rest
        assert row["exposed_unsplit_ns"] == expected


def test_a_report_of_today_keeps_its_own():
    report = sample_reports.report()
    assert Report.from_json(report.to_json()).tables["steps"].equals(report.tables["steps"])
