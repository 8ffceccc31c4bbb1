"""Waiting for data before the step: its share of step and wait, on which ranks, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.ledger import Finding, Report, Stall
from shardtoll.ledger.records.stall import BETWEEN_STEPS
from tests.unit.analyzers.ledgers import MS, US, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("data-stall")

LINE = "train.py:7 (train)"


def fetch(before: int, rank: int = 0, number: int = 0, **given: Any) -> Stall:
    values = {"name": "DataLoader.__next__", "phase": "other", "count": 1, "lost_ns": 0, "source": LINE}
    values |= {"total_ns": before, "before_ns": before} | given
    return Stall(step=number, rank=rank, kind="data", **values)


def gap(before: int, rank: int = 0, number: int = 0) -> Stall:
    return Stall(number, rank, "host", BETWEEN_STEPS, "other", 1, before, 0, before_ns=before)


def reported(stalls: list[Stall], steps: int = 1, ranks: int = 2, **given: Any) -> Report:
    rows = [step(number, rank) for number in range(steps) for rank in range(ranks)]
    about = {"run": run_of(ranks), "steps": rows} | given
    return run(ledger(stalls=stalls, **about))


def data_stalls(*args: Any, **given: Any) -> list[Finding]:
    return [finding for finding in reported(*args, **given).findings if finding.kind == "data-stall"]


def evidence(finding: Finding) -> dict[str, Any]:
    return {item.label: item.value for item in finding.evidence}


def test_the_share_is_of_step_and_wait_together() -> None:
    (finding,) = data_stalls([fetch(25 * MS), fetch(20 * MS, rank=1)])
    assert finding.toll_ns == finding.saving_ns == 25 * MS
    # A step of 100 ms and a wait of 25 ms before it.
    assert evidence(finding)["share of step and wait"] == 0.2
    assert finding.title.startswith("ranks 0-1 wait 25.0 ms per step (20 % of step and wait) for data")
    assert "between steps, once per step, at train.py:7 (train)" in finding.title
    assert (finding.where.source, finding.where.op) == (LINE, "DataLoader.__next__")
    assert (finding.severity, finding.confidence, finding.count) == ("warning", "certain", 1)
    assert finding.remedy is not None
    assert "num_workers" in str(finding.remedy.code)


def test_only_the_ranks_that_wait_are_named() -> None:
    (finding,) = data_stalls([fetch(25 * MS, rank=1), fetch(1 * MS)])
    assert finding.ranks == (1,)
    assert evidence(finding)["rank 0 waits, per step"] == 1 * MS


def test_waiting_inside_the_step_is_part_of_its_duration() -> None:
    inside = fetch(0, lost_ns=30 * MS, total_ns=30 * MS)
    (finding,) = data_stalls([inside])
    assert evidence(finding)["share of step and wait"] == 0.3
    assert "inside the step" in finding.title
    (both,) = data_stalls([fetch(20 * MS, lost_ns=30 * MS, total_ns=50 * MS)])
    assert both.toll_ns == 50 * MS
    assert evidence(both)["share of step and wait"] == round(50 / 120, 4)
    assert "20.0 ms of it between steps" in both.title


def test_a_stall_in_one_step_of_four_is_its_mean() -> None:
    (finding,) = data_stalls([fetch(40 * MS, number=3), *(fetch(0, number=n) for n in (1, 2))], steps=5)
    assert finding.toll_ns == 10 * MS


def test_a_fetch_that_another_program_may_have_held_up_once_is_not_reported() -> None:
    quick = [fetch(300 * US, rank, n) for rank in (0, 1) for n in (1, 3)]
    held_up = [fetch(18 * MS, 0, 2), fetch(300 * US, 1, 2)]
    assert data_stalls([*quick, *held_up], steps=4) == []
    inside = fetch(0, 0, 2, lost_ns=18 * MS, total_ns=18 * MS)
    assert data_stalls([*quick, inside], steps=4) == []
    # In two steps of four it is a habit.
    (finding,) = data_stalls([*quick[1:], *held_up, fetch(18 * MS, 0, 1)], steps=4)
    assert finding.ranks == (0,)


def test_a_rank_that_was_held_up_once_hides_none_that_waits_in_every_step() -> None:
    waits = [fetch(8 * MS, 1, n) for n in (1, 2, 3)]
    (finding,) = data_stalls([*waits, fetch(39 * MS, 0, 2)], steps=4)
    assert (finding.ranks, finding.toll_ns) == ((1,), 8 * MS)


def test_the_first_batch_which_starts_the_workers_is_left_out_where_others_follow() -> None:
    assert data_stalls([fetch(900 * MS)], steps=3) == []
    assert data_stalls([fetch(900 * MS)], steps=2) != []


@pytest.mark.parametrize(("before", "duration"), [(5 * MS, 100 * MS), (1900 * US, 10 * MS)])
def test_collating_a_batch_is_no_stall(before: int, duration: int) -> None:
    parts = {"compute_ns": duration, "exposed_comm_ns": 0, "idle_ns": 0}
    steps = [step(rank=rank, duration_ns=duration, **parts) for rank in (0, 1)]
    report = run(ledger(stalls=[fetch(before)], steps=steps))
    assert [finding for finding in report.findings if finding.kind == "data-stall"] == []


def test_behind_the_host_a_device_may_still_compute() -> None:
    about = run_of(2, device="NVIDIA H100 80GB HBM3", backend="nccl")
    (finding,) = data_stalls([fetch(25 * MS)], run=about)
    assert finding.confidence == "possible"


def test_time_between_steps_that_nothing_explains_is_a_possible_stall() -> None:
    gaps = [gap(60 * MS, rank=1, number=n) for n in range(1, 5)]
    (finding,) = data_stalls(gaps, steps=5)
    assert (finding.toll_ns, finding.saving_ns, finding.confidence) == (60 * MS, None, "possible")
    assert finding.severity == "info"
    assert finding.ranks == (1,)
    assert finding.title.startswith("60.0 ms pass between steps (38 % of step and gap together) on rank 1")


def test_a_validation_every_so_many_steps_is_none() -> None:
    assert data_stalls([gap(900 * MS, number=2)], steps=6) == []
    assert data_stalls([gap(9 * MS, number=n) for n in range(1, 5)], steps=5) == []
    assert data_stalls([gap(20 * MS, number=n) for n in range(1, 5)], steps=5) == []


def test_fetching_explains_the_gap_first() -> None:
    stalls = [fetch(25 * MS, number=n) for n in range(1, 5)] + [gap(60 * MS, number=n) for n in range(1, 5)]
    (finding,) = data_stalls(stalls, steps=5)
    assert finding.toll_ns == 25 * MS


def test_the_steps_parts_are_left_as_they_are() -> None:
    report = reported([fetch(25 * MS)])
    assert report.steps["duration_ns"].tolist() == [100 * MS] * 2
    assert report.steps["idle_ns"].tolist() == [10 * MS] * 2


def test_watched_steps_that_fetch_inside_count_and_not_the_first_of_the_run() -> None:
    """Four surveyed steps, of which the first fetched before it, and four watched ones: 80 ms in each."""
    unknown = {"compute_ns": 0, "idle_ns": 0, "exposed_comm_ns": 10 * MS, "unattributed_ns": 90 * MS}
    rows = [
        step(number, rank) if number < 4 else step(number, rank, level="watch", **unknown)
        for number in range(8)
        for rank in (0, 1)
    ]
    stalls = [fetch(0, number=number, lost_ns=80 * MS, total_ns=80 * MS) for number in range(1, 8)]

    def toll_ns(*made: Stall) -> int | None:
        book = ledger(run=run_of(2), steps=rows, stalls=[fetch(1 * MS), *made])
        (finding,) = (each for each in run(book).findings if each.kind == "data-stall")
        return finding.toll_ns

    assert toll_ns(*stalls) == 80 * MS
    # Steps that were only watched may show nothing of it: the surveyed ones but the first count.
    assert toll_ns(*stalls[:3]) == 80 * MS
