"""Made-up jobs in which lateness travels, or comes in some steps only: the origin alone is named."""

from __future__ import annotations

from typing import Any

import pytest

from shardtoll.ledger import Finding
from tests.unit.test_truth_findings import LOST
from tests.unit.truth import found, report, tell

MS = 1_000_000

SMALL: dict[str, Any] = {"kernels": 2, "layers": 3, "comm_bytes": 1 << 20}
GRID = SMALL | {"strategy": "pipeline", "ranks": 8, "replicas": 4, "microbatches": 6, "extra_ns": 3 * MS // 5}
"""Two stages in four replicas."""

LATE: dict[str, dict[str, Any]] = {
    "a slow worker in pp x dp": GRID | {"straggler": 1},
    "a slow worker of the last stage": GRID | {"straggler": 6},
    "a slow worker in some steps": GRID | {"straggler": 1, "steps": 6, "slow_steps": (1, 4)},
    "a chain of victims": {"strategy": "chain", "straggler": 0, "comm_bytes": 1 << 20},
    "a stage without replicas in some steps": SMALL
    | {"strategy": "pipeline", "ranks": 4, "microbatches": 6, "extra_ns": 3 * MS // 5}
    | {"straggler": 1, "steps": 6, "slow_steps": (1, 4)},
    "a rank of one group in some steps": {"straggler": 2, "steps": 8, "slow_steps": (1, 5)},
}


def _one(knobs: dict[str, Any]) -> Finding:
    (finding,) = found("straggler", **knobs)
    return finding


def _figures(finding: Finding) -> dict[str, float]:
    return {figure.name: figure.value for figure in finding.figures}


def _evidence(finding: Finding) -> dict[str, object]:
    return {item.label: item.value for item in finding.evidence}


def _lasted_ns(knobs: dict[str, Any], steps: tuple[int, ...] = ()) -> float:
    """Return how long the job's steps take in truth, from the first rank's begin to the last one's end."""
    told = tell(**knobs)
    rows = [row for row in told.steps if not steps or row["step"] in steps]
    numbers = {row["step"] for row in rows}
    spans = [
        max(row["start_ns"] + row["duration_ns"] for row in rows if row["step"] == number)
        - min(row["start_ns"] for row in rows if row["step"] == number)
        for number in numbers
    ]
    return sum(spans) / len(spans)


@pytest.mark.parametrize("case", LATE)
def test_the_origin_is_named_and_no_other_cause_of_lost_time(case: str) -> None:
    knobs = LATE[case]
    finding = _one(knobs)
    assert finding.ranks == (knobs["straggler"],)
    assert finding.severity == "warning"
    assert "computing than" in finding.title
    bubble = {"pipeline-bubble"} if knobs.get("strategy") == "pipeline" else set()
    kinds = {each.kind for each in report(**knobs).findings}
    assert kinds & {*LOST, "pipeline-imbalance"} == {"straggler"} | bubble


@pytest.mark.parametrize("strategy", ["pipeline", "chain"])
def test_without_a_slow_worker_none_is_named(strategy: str) -> None:
    knobs = GRID if strategy == "pipeline" else {"strategy": "chain", "comm_bytes": 1 << 20}
    assert found("straggler", **knobs) == []
    assert found("pipeline-imbalance", **knobs) == []


@pytest.mark.parametrize("case", ["a slow worker in pp x dp", "a chain of victims"])
def test_the_slowdown_is_that_against_the_same_job_without_the_slow_worker(case: str) -> None:
    knobs = LATE[case]
    sound = {name: value for name, value in knobs.items() if name != "straggler"}
    figures = _figures(_one(knobs))
    true = _lasted_ns(knobs) / _lasted_ns(sound)
    assert figures["slowdown"] == pytest.approx(true, rel=0.03)
    assert figures["slowdown_alone"] == pytest.approx(true, rel=0.03)
    assert figures["slowdown_of_job"] == pytest.approx(true, rel=0.03)
    assert figures["slow_steps"] == figures["replayed_steps"] == knobs.get("steps", 4)


def test_the_slowdown_is_told_with_and_without_the_worker_its_stage_and_each_step() -> None:
    knobs = LATE["a slow worker in some steps"]
    finding = _one(knobs)
    figures, said = _figures(finding), _evidence(finding)
    assert figures["slowdown_of_stage"] == pytest.approx(figures["slowdown_alone"], rel=0.01)
    assert figures["slowdown_of_other_stages"] == pytest.approx(1.0, abs=0.01)
    assert figures["slowdown_of_worst_step"] == pytest.approx(figures["slowdown"], rel=0.02)
    assert figures["slow_steps"] == 2
    assert "in 2 of 6 steps: there it spends" in finding.title
    assert str(said["slowdown by each rank alone"]).startswith("rank 1: ")
    assert str(said["slowdown by each stage alone, all its ranks"]).startswith("stage 0: ")
    by_step = dict(part.split(": ") for part in str(said["slowdown of each step"]).split(", "))
    slow = {step for step, times in by_step.items() if float(times) > 1.05}
    assert slow == {"step 1", "step 4"}


def test_the_victims_of_a_chain_are_no_causes() -> None:
    said = _evidence(_one(LATE["a chain of victims"]))
    assert said["ranks that wait"] == "ranks 1-3"
    assert said["ranks that are late because of it"] == "ranks 1-2"


@pytest.mark.parametrize(
    "case", ["a stage without replicas in some steps", "a rank of one group in some steps"]
)
def test_a_rank_without_equals_is_held_to_its_other_steps(case: str) -> None:
    finding = _one(LATE[case])
    assert "than in its other steps" in finding.title
    steps = LATE[case]["steps"]
    assert f"in 2 of {steps} steps" in finding.title


def test_a_rank_that_is_slow_once_is_information() -> None:
    knobs = LATE["a rank of one group in some steps"] | {"slow_steps": (3,)}
    assert _one(knobs).severity == "info"


INTERLEAVED = SMALL | {"strategy": "pipeline", "layers": 2, "microbatches": 6}


@pytest.mark.parametrize("schedule_marked", [True, False])
@pytest.mark.parametrize(
    ("ranks", "chunks", "as_v"),
    [(4, 1, False), (4, 2, False), (4, 2, True), (2, 1, False), (2, 2, False), (2, 2, True)],
)
def test_schedules_are_counted_in_micro_batches_and_stages(
    ranks: int, chunks: int, as_v: bool, schedule_marked: bool
) -> None:
    knobs = INTERLEAVED | {"ranks": ranks, "chunks": chunks, "as_v": as_v, "schedule_marked": schedule_marked}
    (bubble,) = found("pipeline-bubble", **knobs)
    said = _evidence(bubble)
    assert (said["micro-batches"], said["stages"]) == (6, ranks * chunks)
    ideal = (ranks - 1) / (6 * chunks + ranks - 1)
    assert said["ideal bubble, share of the step"] == pytest.approx(ideal, abs=1e-4)
    assert bubble.remedy is not None
    advice = bubble.remedy.text + (bubble.remedy.code or "")
    assert ("nterleav" in advice) == (chunks == 1)
    kinds = {each.kind for each in report(**knobs).findings}
    assert kinds & {*LOST, "pipeline-imbalance"} == {"pipeline-bubble"}
