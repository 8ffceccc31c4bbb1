"""A job that hangs: its first screen and the page's top speak of the hang, and of no cost."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from shardtoll.dashboards.facts.first_screen.first_rows import worth_showing
from shardtoll.dashboards.page import page
from shardtoll.dashboards.terminal.first_screen import LINES
from shardtoll.ledger import Evidence, Finding, Remedy, Report, Where
from tests import sample_reports
from tests.unit.dashboards.terminal.test_first_screen import shown

TITLE = "Rank 1 skipped broadcast 8 of group 0 at train.py:36 (step) in step 3; rank 0 is in the skipped one."
HANG = Finding(
    "hang", "error", TITLE, None, None, None, 16, 1, (0, 1), Where(source="train.py:36 (step)"),
    (Evidence("ranks that wait", "rank 0"), Evidence("ranks at fault", "rank 1"),
     Evidence("longest wait", 130_000_000_000, "ns"), Evidence("first divergence, rank 1", "all_reduce 8")),
    Remedy("Issue this collective on every rank of the group.", None),
)  # fmt: skip


def hung(*more: Finding) -> Report:
    report = sample_reports.report()
    costs = [each for each in report.findings if each.severity != "error"]
    return replace(report, findings=(HANG, *more, *costs), overlaps=())


@pytest.mark.parametrize("width", [30, 80, 100, 200])
def test_the_first_screen_has_the_hang_and_no_cost(width: int):
    report = hung()
    text = shown(report, width)
    said = " ".join(text.split())
    assert "1 error to fix first: Rank 1 skipped broadcast 8" in said
    assert "remedy: Issue this collective on every rank of the group." in said
    assert [
        word for word in ("toll ", "saving", "idle", "compute", "█") if word in text.replace("shardtoll", "")
    ] == []
    assert len(text.splitlines()) <= LINES
    assert max(map(cell_len, text.splitlines())) <= width
    if width >= 80:
        for fact in (
            "ranks that wait: rank 0",
            "longest wait: 130",
            "first divergence, rank 1: all_reduce 8",
        ):
            assert fact in said
        # The command has a line of its own where it has no room after its words.
        assert re.search(
            rf"{len(report.findings) - 1} findings on steps that finished( \([^)]*\))?: "
            r"shardtoll report runs/a --all",
            said,
        )


def test_other_errors_are_named_below():
    drift = replace(HANG, kind="replica-drift", title="Replicas differ after step 2.")
    report = hung(drift)
    number = 1 + next(place for place, each in enumerate(report.findings) if each.kind == "replica-drift")
    text = shown(report, 100)
    assert "2 errors to fix first: Rank 1 skipped" in text
    assert f"Another error: Replicas differ after step 2. (finding {number})" in text
    assert [row.finding.kind for row in worth_showing(report)] == ["hang", "replica-drift"]


def test_facts_leave_room_for_the_remedy():
    many = tuple(Evidence(f"fact {number}", "word " * 30) for number in range(20))
    text = shown(replace(hung(), findings=(replace(HANG, evidence=many),)), 80)
    assert len(text.splitlines()) <= LINES
    assert "remedy: Issue this collective on every rank of the group." in text
    assert "on steps that finished" not in text


def test_the_top_of_the_page_has_no_cost_either():
    top = page.head(hung(), hung().verdict)
    assert "remedy" in top
    assert "ranks at fault" in top
    assert 'findings on steps that finished: <a href="#bill">the bill below</a>' in top
    assert [
        word for word in ("toll ", "saving", 'class="steps"') if word in top.partition("<details")[0]
    ] == []
    assert 'class="steps"' in page.head(sample_reports.report(), "x")
