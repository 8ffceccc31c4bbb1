"""A run that hung has one more finding, and what speaks of the others by number still does."""

from __future__ import annotations

from pathlib import Path

from shardtoll.cli.inputs.hung import with_hang
from shardtoll.ledger.answers.overlap import Overlap
from shardtoll.ledger.answers.what_if import Change, Foreseen, Parts
from shardtoll.ledger.answers.what_if import Path as CriticalPath
from tests.sample_reports import report
from tests.unit.cli.test_hang_command import hung


def test_numbers_of_findings_go_on_with_a_hang_in_front(tmp_path: Path) -> None:
    before = report(overlaps=(Overlap((2, 3), 1_000, saved=True),))
    hung(tmp_path)
    after = with_hang(before, tmp_path)
    assert after.findings[0].kind == "hang"
    for was, now in zip(before.overlaps, after.overlaps, strict=True):
        assert [after.findings[n - 1] for n in now.findings] == [before.findings[n - 1] for n in was.findings]
        assert now.findings != was.findings


def test_a_replayed_fix_is_still_that_of_its_finding(tmp_path: Path) -> None:
    parts = Parts(10, 10, 0, 0, 0)
    change = Change("without it", 2, "implicit-redistribute", None, 5, 5, 5, 5, 5)
    foreseen = Foreseen("points", (1,), 10, 0.0, 0.0, parts, (change,), None, CriticalPath(10, (), 0.0, 0))
    before = report(foreseen=foreseen)
    hung(tmp_path)
    after = with_hang(before, tmp_path)
    assert after.foreseen is not None
    (now,) = after.foreseen.changes
    assert now.number == 3
    assert after.findings[now.number - 1] is before.findings[1]


def test_a_run_that_did_not_hang_keeps_its_report(tmp_path: Path) -> None:
    made = report()
    assert with_hang(made, tmp_path) is made
