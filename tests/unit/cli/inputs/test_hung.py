"""A run that hung has one more finding, and what speaks of the others by number still does."""

from __future__ import annotations

from pathlib import Path

from shardtoll.cli.inputs.hung import with_hang
from shardtoll.ledger.answers.overlap import Overlap
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
    assert before.foreseen is not None
    assert after.foreseen is not None
    numbered = [each for each in after.foreseen.changes if each.number is not None]
    assert numbered
    for each in numbered:
        assert each.number is not None
        assert (after.findings[each.number - 1].kind, after.findings[each.number - 1].title) == (
            each.kind,
            each.title,
        )


def test_a_run_that_did_not_hang_keeps_its_report(tmp_path: Path) -> None:
    made = report()
    assert with_hang(made, tmp_path) is made
