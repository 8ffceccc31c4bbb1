"""The stage of a pipeline that computes longer than the others."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.whatif.edits.remedies import edit_of
from shardtoll.ledger import Finding, Group, Ledger, Report, Stall
from tests.unit.analyzers.ledgers import MS, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running
from tests.unit.truth import found, report, tell

slow_stages = running("pipeline-imbalance")


def of(computes: list[int], **given: Any) -> Report:
    steps = [
        step(rank=rank, compute_ns=ms * MS, exposed_comm_ns=0, idle_ns=(100 - ms) * MS)
        for rank, ms in enumerate(computes)
    ]
    return slow_stages(ledger(run=run_of(len(computes)), steps=steps, **given))


def imbalances(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == "pipeline-imbalance"]


PIPE = Group("pp", (0, 1, 2, 3), mesh_dim="pp")


def test_the_toll_is_what_the_slowest_stage_computes_beyond_the_mean() -> None:
    (finding,) = imbalances(of([30, 30, 50, 30], groups=[PIPE]))
    assert (finding.ranks, finding.toll_ns, finding.saving_ns) == ((2,), 15 * MS, 15 * MS)
    assert finding.title.startswith(
        "rank 2 (stage 2 of 0-3) computes 50.0 ms per step, 15.0 ms more than the mean stage (15 %"
    )
    assert finding.confidence == "certain"


def test_of_several_pipelines_each_slow_stage_is_named() -> None:
    groups = [Group("a", (0, 2), mesh_dim="pp"), Group("b", (1, 3), mesh_dim="pp")]
    (finding,) = imbalances(of([30, 30, 50, 48], groups=groups))
    assert (finding.ranks, finding.toll_ns) == ((2, 3), 10 * MS)


@pytest.mark.parametrize("computes", [[30, 31, 30, 30], [30, 30, 30, 30], [1, 2, 1, 1]])
def test_noise_and_little_time_are_no_imbalance(computes: list[int]) -> None:
    assert imbalances(of(computes, groups=[PIPE])) == []


def test_ranks_that_differ_without_a_pipeline_are_none() -> None:
    assert imbalances(of([30, 30, 50, 30])) == []


def test_a_pipeline_with_a_rank_missing_says_nothing() -> None:
    about = run_of(4, ranks_seen=(0, 1, 2))
    steps = [
        step(rank=rank, compute_ns=ms * MS, exposed_comm_ns=0, idle_ns=(100 - ms) * MS)
        for rank, ms in enumerate((30, 50, 70))
    ]
    assert imbalances(slow_stages(ledger(run=about, steps=steps, groups=[PIPE]))) == []


def test_where_only_idle_time_tells_of_a_pipeline_the_order_is_not_claimed() -> None:
    stalls = [Stall(0, rank, "bubble", "Forward", "forward", 1, 50 * MS, 50 * MS) for rank in range(4)]
    (finding,) = imbalances(of([30, 30, 50, 30], stalls=stalls))
    assert "stage 2" not in finding.title
    assert (finding.ranks, finding.confidence) == ((2,), "likely")


@pytest.mark.parametrize("transport", ["device", "host"])
def test_the_slow_stage_of_a_made_up_job_is_named_in_bill_and_headline(transport: str) -> None:
    knobs = {"strategy": "pipeline", "transport": transport, "straggler": 2}
    (finding,) = found("pipeline-imbalance", **knobs)
    told = tell(**knobs)
    computed = [0.0] * told.spec.ranks
    for row in told.truth["steps"]:
        computed[row["rank"]] += row["compute_ns"] / told.spec.steps
    assert finding.ranks == (2,)
    assert finding.toll_ns == pytest.approx(max(computed) - sum(computed) / len(computed), rel=0.02)
    headline = report(**knobs).headline
    assert headline is not None
    assert "rank 2" in headline
    assert "more than the mean stage" in headline


@pytest.mark.parametrize("transport", ["device", "host"])
def test_even_stages_are_no_finding(transport: str) -> None:
    assert found("pipeline-imbalance", strategy="pipeline", transport=transport) == []


def sleeping(idles: list[int], numbers: range = range(1), **given: Any) -> Report:
    steps = [
        step(
            number,
            rank,
            compute_ns=1 * MS,
            exposed_comm_ns=(99 - ms) * MS,
            idle_ns=ms * MS,
        )
        for number in numbers
        for rank, ms in enumerate(idles)
    ]
    return slow_stages(ledger(run=run_of(len(idles)), steps=steps, **given))


def test_a_stage_that_sleeps_between_its_messages_is_slow_too() -> None:
    (finding,) = imbalances(sleeping([19, 19, 79, 19], groups=[PIPE]))
    assert (finding.ranks, finding.toll_ns) == ((2,), 45 * MS)
    assert finding.title.startswith(
        "rank 2 (stage 2 of 0-3) spends 80.0 ms per step outside messages, 45.0 ms more than the mean stage"
    )
    assert finding.remedy is not None
    assert finding.remedy.code
    # What is balanced is what was compared: balanced operators alone would save nothing here.
    assert fix_of(sleeping([19, 19, 79, 19], groups=[PIPE])) == "the same work on every rank"
    assert fix_of(of([10, 10, 40, 10], groups=[PIPE])) == "the same compute on every rank"


def fix_of(report: Report) -> str:
    (finding,) = imbalances(report)
    edit = edit_of(context_of(Ledger(report.run, report.groups, report.tables)), finding)
    assert edit is not None
    return edit.label


@pytest.mark.parametrize("idles", [[39, 39, 49, 39], [1, 1, 5, 1]])
def test_what_a_busy_machine_does_to_one_stage_is_no_imbalance(idles: list[int]) -> None:
    assert imbalances(sleeping(idles, groups=[PIPE])) == []


def test_a_stage_held_up_in_one_step_of_two_is_not_slow() -> None:
    both = [
        step(number, rank, compute_ns=1 * MS, exposed_comm_ns=(99 - ms) * MS, idle_ns=ms * MS)
        for number, idles in enumerate(([19, 19, 79, 19], [19, 19, 19, 19]))
        for rank, ms in enumerate(idles)
    ]
    assert imbalances(slow_stages(ledger(run=run_of(4), steps=both, groups=[PIPE]))) == []


def test_of_a_device_idle_time_tells_nothing() -> None:
    about = run_of(4, device="NVIDIA H100 80GB HBM3", backend="nccl", source="trace")
    steps = [
        step(rank=rank, compute_ns=1 * MS, exposed_comm_ns=(99 - ms) * MS, idle_ns=ms * MS)
        for rank, ms in enumerate((19, 19, 79, 19))
    ]
    assert imbalances(slow_stages(ledger(run=about, steps=steps, groups=[PIPE]))) == []


def surveyed_and_watched(surveyed: list[int], works: list[int]) -> Report:
    """A job whose stages work, of 100 ms, as long as `works` where they are only watched."""
    steps = []
    for number in range(5):
        watched = number > 1
        for rank, ms in enumerate(works if watched else surveyed):
            parts = {"exposed_comm_ns": (100 - ms) * MS}
            if watched:
                parts |= {"compute_ns": 0, "idle_ns": 0, "unattributed_ns": ms * MS}
            else:
                parts |= {"compute_ns": ms * MS // 2, "idle_ns": ms * MS // 2}
            level = "watch" if watched else "survey"
            steps.append(step(number, rank, level=level, **parts))
    return slow_stages(ledger(run=run_of(4), steps=steps, groups=[PIPE]))


def test_what_a_survey_does_to_a_stage_is_no_imbalance() -> None:
    assert imbalances(surveyed_and_watched([30, 30, 80, 30], [30, 30, 30, 30])) == []


def test_the_slow_stage_is_that_of_watched_steps() -> None:
    (finding,) = imbalances(surveyed_and_watched([30, 30, 60, 30], [20, 60, 20, 20]))
    assert finding.ranks == (1,)
    assert "rank 1 (stage 1 of 0-3)" in finding.title


@pytest.mark.parametrize("cause", ["forward", "backward"])
def test_where_hosts_wait_for_messages_only_the_slow_stage_is_late(cause: str) -> None:
    """Beside another pipeline, so that the late reduction could be blamed on any stage."""
    knobs = {"strategy": "pipeline", "transport": "host", "replicas": 2, "straggler": 3, "cause": cause}
    assert [finding.ranks for finding in found("straggler", ranks=8, **knobs)] == [(3,)]
    headline = report(ranks=8, **knobs).headline
    assert headline is not None
    assert "and rank 3 is late, which makes the step 11." in headline
