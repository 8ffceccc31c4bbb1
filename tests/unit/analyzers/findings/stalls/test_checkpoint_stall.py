"""Time that saves block the training: how long, how many bytes, how often; unknown bytes stay unknown."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers.advise.from_run.measured import checkpoint_cost
from shardtoll.ledger import Report, Stall
from tests.unit.analyzers.ledgers import MS, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("checkpoint-stall")

MB = 1_000_000
LINE = "train.py:9 (train)"


def save(spent: int, written: int | None, number: int = 0, rank: int = 0, **given: Any) -> Stall:
    values = {"name": "torch.save", "phase": "other", "count": 1, "lost_ns": 0, "source": LINE}
    values |= {"total_ns": spent, "before_ns": spent, "bytes": written} | given
    return Stall(step=number, rank=rank, kind="checkpoint", **values)


def reported(stalls: list[Stall], steps: int = 4, ranks: int = 1) -> Report:
    rows = [step(number, rank) for number in range(steps) for rank in range(ranks)]
    return run(ledger(stalls=stalls, run=run_of(ranks), steps=rows))


def said(report: Report) -> dict[str, Any]:
    (finding,) = report.findings
    return {item.label: item.value for item in finding.evidence}


def test_the_finding_has_time_bytes_and_the_best_interval() -> None:
    report = reported([save(100 * MS, 50 * MB, number=2)])
    (finding,) = report.findings
    labels = said(report)
    assert labels["blocked by one checkpoint on the worst rank"] == 100 * MS
    assert labels["written by all ranks, one checkpoint"] == finding.bytes == 50 * MB
    assert labels["written per second"] == 0.5
    # Four steps of 100 ms, and the save before one of them.
    assert labels["share of steps and saves"] == 0.2
    assert labels["best time between checkpoints, by Daly"] > 100 * MS
    assert finding.toll_ns == 25 * MS
    assert (finding.severity, finding.where.source) == ("warning", LINE)
    assert "rank 0 waits 100 ms while a checkpoint is written" in finding.title
    assert "once in 4 steps" in finding.title
    assert checkpoint_cost(report) == {"checkpoint_blocked_s": 0.1, "checkpoint_gbps": 0.5}


def test_a_save_under_a_millisecond_is_not_worth_saying() -> None:
    assert reported([save(MS - 1, 1000)]).findings == ()


def test_saves_of_unknown_bytes_count_in_no_mean_of_bytes() -> None:
    # One save that waits for its file, nine that only copy: theirs are not yet written.
    stalls = [save(1000 * MS, 100 * MB), *(save(10 * MS, None, number) for number in range(1, 10))]
    report = reported(stalls, steps=10)
    labels = said(report)
    assert labels["checkpoints there"] == 10
    assert labels["blocked by one checkpoint on the worst rank"] == 109 * MS
    assert labels["written by all ranks, one checkpoint"] == report.findings[0].bytes == 100 * MB
    # By the time of the save that wrote them.
    assert labels["written per second"] == 0.1
    cost = checkpoint_cost(report)
    assert cost["checkpoint_blocked_s"] == pytest.approx(0.109)
    assert cost["checkpoint_gbps"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "others", [[save(50 * MS, None)], [save(50 * MS, 10 * MB), save(50 * MS, None, rank=1)]]
)
def test_bytes_stay_unknown_if_those_of_a_rank_are(others: list[Stall]) -> None:
    report = reported(others, ranks=2)
    assert "written by all ranks, one checkpoint" not in said(report)
    assert report.findings[0].bytes is None
    assert "GB/s" not in report.findings[0].title
    assert set(checkpoint_cost(report)) == {"checkpoint_blocked_s"}


def test_ranks_add_up_and_the_slowest_sets_the_rate() -> None:
    stalls = [save(100 * MS, 30 * MB), save(200 * MS, 50 * MB, rank=1)]
    stalls += [save(100 * MS, 30 * MB, 1), save(200 * MS, 50 * MB, 1, rank=1)]
    report = reported(stalls, ranks=2)
    labels = said(report)
    assert labels["written by all ranks, one checkpoint"] == 80 * MB
    assert labels["written per second"] == 0.4
    assert checkpoint_cost(report)["checkpoint_gbps"] == pytest.approx(0.4)
