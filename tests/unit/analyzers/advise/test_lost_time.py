"""What of a step no layout changes: it is taken out before forecasts are scaled to the step."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.advise.from_run.run_question import lost_ns
from shardtoll.ledger import Finding, Report, Stall, Where
from shardtoll.ledger.report.report import FabricInfo
from tests.unit.analyzers.ledgers import MS, ledger, run_of, step


def report(*stalls: Stall, capture_ms: int = 0, late_ms: int = 0, source: str = "live") -> Report:
    """Three steps of 100 ms on two ranks."""
    capture = {"compute_ns": (50 - capture_ms) * MS, "unattributed_ns": capture_ms * MS}
    numbers = [(number, rank) for number in range(3) for rank in (0, 1)]
    steps = [step(*each, capture_ns=capture_ms * MS, **capture) for each in numbers]
    made = ledger(steps=steps, stalls=stalls, run=run_of(2, source=source))
    late = Finding("straggler", "warning", "t", late_ms * MS, None, None, None, 1, (1,), Where())
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables, (late,) if late_ms else ())


def stalls(kind: str, total_ms: int, lost_ms: int = 0, before_ms: int = 0, rank: int = 0) -> list[Stall]:
    times = (total_ms * MS, lost_ms * MS)
    return [
        Stall(number, rank, kind, "", "other", 1, *times, before_ns=before_ms * MS)  # type: ignore[arg-type]
        for number in range(3)
    ]


def test_a_step_that_lost_nothing() -> None:
    assert lost_ns(report()) == 0
    assert lost_ns(report(*stalls("host", 30, 30))) == 0


@pytest.mark.parametrize(
    ("kind", "total_ms", "lost_ms", "before_ms", "out_ms"),
    [("data", 30, 20, 10, 20), ("checkpoint", 30, 0, 10, 20), ("checkpoint", 300, 0, 0, 100)],
)
def test_what_is_between_steps_is_no_part_of_them(
    kind: str, total_ms: int, lost_ms: int, before_ms: int, out_ms: int
) -> None:
    assert lost_ns(report(*stalls(kind, total_ms, lost_ms, before_ms))) == out_ms * MS


def test_a_save_in_one_step_of_three_is_not_in_the_median() -> None:
    assert lost_ns(report(stalls("checkpoint", 90)[0])) == 0


def test_who_stalls_is_late_and_counts_once() -> None:
    data = stalls("data", 20, 20)
    assert lost_ns(report(late_ms=30)) == 30 * MS
    assert lost_ns(report(*data, late_ms=30)) == 30 * MS
    assert lost_ns(report(*data, late_ms=10)) == 20 * MS
    assert lost_ns(report(*data, *stalls("data", 5, 5, rank=1))) == 20 * MS
    assert lost_ns(report(*data, capture_ms=4)) == 24 * MS


def test_a_dry_step_has_no_such_time() -> None:
    assert lost_ns(report(*stalls("data", 20, 20), source="dry")) == 0
