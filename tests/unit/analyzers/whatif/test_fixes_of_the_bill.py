"""Fixes of findings, as a user asks for them, held against made-up jobs without the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from shardtoll.analyzers.whatif.edits.remedies import stages
from tests.unit.analyzers.whatif.conftest import Job

MS: Final = 1_000_000
JOBS: Final[dict[str, dict[str, Any]]] = {
    "ddp": {"strategy": "ddp", "steps": 3},
    "fsdp": {"strategy": "fsdp", "steps": 3},
    "pipeline": {"strategy": "pipeline", "steps": 3},
    "pipelines": {"strategy": "pipeline", "steps": 3, "replicas": 2},
    "interleaved": {"strategy": "pipeline", "steps": 3, "chunks": 2},
}
CAUSES: Final[dict[str, dict[str, Any]]] = {
    "data-stall": {"data_ns": 3 * MS},
    "host-sync": {"sync_ns": 3 * MS},
    "transfer-stall": {"copy_ns": 3 * MS},
    "recompute": {"recompute": True},
}


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("name", JOBS)
def test_a_fix_leaves_the_step_without_its_cause(job: Callable[..., Job], name: str, kind: str) -> None:
    slow, fixed = job(**JOBS[name], **CAUSES[kind]), job(**JOBS[name])
    expected, before = (each.lasts_ns(each.recorded()) for each in (fixed.recorded, slow.recorded))
    report = slow.report
    numbers = [number for number, each in enumerate(report.findings, 1) if each.kind == kind]
    assert numbers
    answer = report.whatif(*numbers)
    assert answer.after.step_ns == pytest.approx(expected, rel=0.015)
    assert answer.saving_low_ns <= before - expected <= answer.saving_high_ns


def test_a_second_forward_in_a_pipeline_costs_the_step_more_than_each_stage(job: Callable[..., Job]) -> None:
    made = job(**JOBS["pipeline"], recompute=True)
    report = made.report
    ((number, finding),) = [
        (nth, each) for nth, each in enumerate(report.findings, 1) if each.kind == "recompute"
    ]
    answer = report.whatif(number)
    assert stages(made.context) == 4
    assert finding.toll_ns is not None
    assert 1.2 * finding.toll_ns < answer.saving_ns < 4 * finding.toll_ns
    assert any("each stage of the pipeline waits" in note for note in answer.notes)
    assert report.foreseen is not None
    (change,) = [each for each in report.foreseen.changes if each.number == number]
    assert change.saving_ns == pytest.approx(answer.saving_ns, rel=0.01)
