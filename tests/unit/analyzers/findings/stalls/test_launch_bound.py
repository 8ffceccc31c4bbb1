"""Waiting for launches: when it is billed, at whom, and that no other finding bills the same time."""

from __future__ import annotations

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Stall
from tests.unit.analyzers.ledgers import MS, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

IDLE = {"compute_ns": 40 * MS, "exposed_comm_ns": 0, "idle_ns": 60 * MS, "unattributed_ns": 0}
GPUS = run_of(2, backend="nccl", device="NVIDIA H200", source="trace")


def launch(lost, rank=0, number=0, count=50, phase="forward", kind="launch"):
    return Stall(number, rank, kind, "", phase, count, lost, lost)


def found(stalls, kind="launch-bound", **given):
    given = {"run": GPUS, "steps": [step(**IDLE)]} | given
    return [each for each in running(kind)(ledger(stalls=stalls, **given)).findings if each.kind == kind]


def test_the_toll_is_the_mean_over_steps_on_the_worst_rank():
    steps = [step(number, rank, **IDLE) for number in (0, 1) for rank in (0, 1)]
    stalls = [
        launch(30 * MS),
        launch(50 * MS, number=1),
        launch(20 * MS, rank=1),
        launch(3 * MS, kind="host"),
    ]
    (finding,) = found(stalls, steps=steps)
    assert (finding.toll_ns, finding.saving_ns, finding.count) == (40 * MS, 40 * MS, 50)
    assert finding.ranks == (0, 1)
    assert finding.where.phase == "forward"
    assert {each.name: each.value for each in finding.figures} == {
        "lost_ns": 40 * MS,
        "share_of_step": 0.4,
        "gaps": 50,
    }
    assert finding.title == (
        "the device waits for kernel launches for 40.0 ms per step (40 %), in 50 short gaps per step, "
        "mostly in forward, on ranks 0-1"
    )
    told = {each.label: each.value for each in finding.evidence}
    assert told["mean gap"] == 40 * MS // 50
    assert told["other idle time without a reason on record, per step"] == 1_500_000
    assert 'mode="reduce-overhead"' in finding.remedy.code


@pytest.mark.parametrize(
    ("lost", "count", "severity"),
    [
        (9.9, 50, None),
        (10, 50, "info"),
        (19.9, 50, "info"),
        (20, 50, "warning"),
        (50, 19, None),
        (50, 20, "warning"),
    ],
)
def test_it_has_limits_of_its_own(lost, count, severity):
    findings = found([launch(round(lost * MS), count=count)])
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_gaps_that_no_late_launch_ends_are_none():
    assert found([launch(60 * MS, kind="host")]) == []


def test_most_of_it_in_the_optimizer_asks_for_a_fused_one():
    (finding,) = found([launch(30 * MS, phase="optimizer"), launch(10 * MS)])
    assert "fused=True" in finding.remedy.code
    assert finding.where.phase == "optimizer"
    (mixed,) = found([launch(20 * MS, phase="optimizer"), launch(20 * MS)])
    assert mixed.where.phase is None
    assert "mostly" not in mixed.title


def test_the_headline_names_launches_only_if_a_finding_stands_behind_it():
    steps = [step(**IDLE)]
    many = run(ledger(stalls=[launch(50 * MS)], steps=steps, run=GPUS))
    assert many.headline.startswith("The CPU launches kernels too slowly: rank 0's GPU is idle for 60.0 ms")
    assert "replay the step as CUDA graphs" in many.headline
    assert many.unbilled is None
    few = run(ledger(stalls=[launch(50 * MS, count=3)], steps=steps, run=GPUS))
    assert few.headline.startswith("Idle time costs most: ")
    assert "CUDA graphs" not in few.headline
    assert few.unbilled is not None


LIVE = run_of(1, backend="nccl", device="NVIDIA H200", source="live")
SLOW = {"compute_ns": 40 * MS, "exposed_comm_ns": 0, "idle_ns": 260 * MS, "unattributed_ns": 0}
"""A step of 100 ms whose host a survey slows."""
PLAIN = {"compute_ns": 0, "exposed_comm_ns": 0, "idle_ns": 0, "unattributed_ns": 100 * MS, "level": "watch"}


def test_a_surveyed_steps_launches_are_billed_as_watched_steps_idle():
    steps = [step(0, duration_ns=300 * MS, **SLOW), *(step(number, **PLAIN) for number in range(1, 5))]
    report = run(ledger(run=LIVE, steps=steps, stalls=[launch(200 * MS), launch(26 * MS, kind="host")]))
    (finding,) = (each for each in report.findings if each.kind == "launch-bound")
    # The survey made 200 ms of the host's 226.
    assert finding.toll_ns == pytest.approx(200 * MS * 26 / 226, abs=1)
    assert {each.name: each.value for each in finding.figures}["share_of_step"] == pytest.approx(0.2301)
    assert "is idle for 60.0 ms (60 %) of its 100 ms step" in report.headline


def test_steps_that_were_all_surveyed_do_not_tell_whether_launches_are_slow():
    steps = [step(number, duration_ns=300 * MS, **SLOW) for number in (0, 1)]
    stalls = [launch(200 * MS, number=number) for number in (0, 1)]
    report = run(ledger(run=LIVE, steps=steps, stalls=stalls))
    assert [each for each in report.findings if each.kind == "launch-bound"] == []
    assert report.headline.startswith(
        "Every step was surveyed, which slows the host: rank 0's GPU is idle for"
    )
    assert report.headline.endswith("audit at the default level to see how much of that is the job's own.")


def test_a_batch_that_was_waited_for_is_no_cost_of_a_survey():
    """Of 60 ms of idle time 50 are the loader's; the survey adds 200 to the host's 10."""
    steps = [step(0, duration_ns=300 * MS, **SLOW), *(step(number, **PLAIN) for number in range(1, 5))]
    stalls = [launch(210 * MS), launch(50 * MS, kind="data")]
    report = run(ledger(run=LIVE, steps=steps, stalls=stalls))
    tolls = {each.kind: each.toll_ns for each in report.findings if each.toll_ns}
    assert tolls["data-stall"] == 50 * MS
    assert tolls["launch-bound"] == 10 * MS
    (surveyed, *watched) = report.tables["steps"].to_pylist()
    assert (surveyed["idle_ns"], surveyed["capture_ns"]) == (60 * MS, 200 * MS)
    assert {row["idle_ns"] for row in watched} == {60 * MS}


def test_a_step_that_waited_long_for_a_batch_did_not_wait_for_the_survey():
    slow = {"compute_ns": 40 * MS, "exposed_comm_ns": 0, "idle_ns": 1260 * MS, "unattributed_ns": 0}
    steps = [step(0, duration_ns=1300 * MS, **slow), *(step(number, **PLAIN) for number in range(1, 5))]
    report = run(ledger(run=LIVE, steps=steps, stalls=[launch(60 * MS), launch(1200 * MS, kind="data")]))
    (surveyed, *_) = report.tables["steps"].to_pylist()
    assert (surveyed["idle_ns"], surveyed["capture_ns"]) == (1200 * MS, 60 * MS)


def test_a_rank_that_was_only_surveyed_is_not_billed_beside_one_that_was_watched():
    two = run_of(2, backend="nccl", device="NVIDIA H200", source="live")
    steps = [step(0, rank, duration_ns=300 * MS, **SLOW) for rank in (0, 1)]
    steps += [step(number, 0, **PLAIN) for number in range(1, 5)]
    report = run(ledger(run=two, steps=steps, stalls=[launch(200 * MS, rank=rank) for rank in (0, 1)]))
    assert [each for each in report.findings if each.kind == "launch-bound" and 1 in each.ranks] == []
    assert "launches kernels too slowly" not in report.headline


def test_a_loader_is_to_blame_also_where_all_steps_were_surveyed():
    steps = [step(number, duration_ns=300 * MS, **SLOW) for number in (0, 1)]
    stalls = [launch(200 * MS, number=number, kind="data") for number in (0, 1)]
    report = run(ledger(run=LIVE, steps=steps, stalls=stalls))
    assert report.headline.startswith("Data loading costs most: rank 0's GPU is idle for 260 ms")
