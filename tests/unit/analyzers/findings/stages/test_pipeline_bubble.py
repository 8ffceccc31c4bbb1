"""The bubble of an audited pipeline against its schedule's ideal, with and without a mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.ledger import Collective, Finding, Group
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running("pipeline-bubble")

STAGES = 4
LINE = "train.py:5 (step)"


def messages(batches: int, waited: int, mesh_dim: str | None = None) -> list[Collective]:
    """Activations go up and gradients come down; every receive waits `waited` for its sender."""
    rows: list[Collective] = []
    start = 1 * MS

    def pair(sender: int, receiver: int, phase: str) -> None:
        nonlocal start
        begin = {"group": "g", "group_size": STAGES, "mesh_dim": mesh_dim, "phase": phase, "source": LINE}
        begin |= {"message_bytes": 64, "seq": None}
        long = waited + MS // 10
        rows.append(
            collective(rank=sender, op="send", root=receiver, **begin, **at(start + waited, MS // 10))
        )
        rows.append(collective(rank=receiver, op="recv", root=sender, **begin, **at(start, long)))
        start += long

    for _ in range(batches):
        for stage in range(STAGES - 1):
            pair(stage, stage + 1, "forward")
        for stage in reversed(range(STAGES - 1)):
            pair(stage + 1, stage, "backward")
    return rows


def at(start: int, lasts: int) -> dict[str, int]:
    return {"start_ns": start, "issue_ns": start, "duration_ns": lasts, "exposed_ns": lasts}


def bubbles(batches: int, waited: int, mesh_dim: str | None = None) -> list[Finding]:
    mesh = {} if mesh_dim is None else {mesh_dim: STAGES}
    groups = (Group("g", tuple(range(STAGES)), mesh_dim),)
    about = run_of(STAGES, mesh=mesh)
    report = run(ledger(messages(batches, waited, mesh_dim), run=about, groups=groups))
    return [finding for finding in report.findings if finding.kind == "pipeline-bubble"]


@pytest.mark.parametrize("mesh_dim", [None, "pp"])
def test_a_bubble_beyond_the_ideal_is_found_with_or_without_a_mesh(mesh_dim: str | None) -> None:
    (finding,) = bubbles(4, 9 * MS, mesh_dim)
    # Stages between receive twice a micro-batch: 8 waits of 9 ms in a step of 100 ms, where 3/7 are needed.
    assert finding.toll_ns == 72 * MS
    assert finding.saving_ns == round(72 * MS - 3 / 7 * 100 * MS)
    assert "4 stages and 4 micro-batches need 43 %" in finding.title
    assert finding.where.source == LINE
    said = {item.label: item.value for item in finding.evidence}
    assert said["bubble, share of the step"] == 0.72


def test_a_bubble_at_its_ideal_is_the_schedules_own() -> None:
    assert bubbles(4, 6 * MS) == []


def test_a_schedule_that_must_idle_for_most_of_the_step_is_told_so() -> None:
    (finding,) = bubbles(1, 35 * MS)
    # One micro-batch: three quarters of the step.
    assert "4 stages and 1 micro-batches need 75 %" in finding.title
    # More micro-batches shrink it, by what a replay tells.
    assert finding.saving_ns is None
    assert finding.remedy is not None
    assert "--micro-batches" in finding.remedy.text


def test_a_bubble_that_is_not_in_every_step_is_the_machines_load() -> None:
    rows = messages(4, 9 * MS)
    calm = [replace(row, step=1) for row in messages(4, 5 * MS)]
    about = run_of(STAGES)
    groups = (Group("g", tuple(range(STAGES)), None),)
    steps = [step(number, rank) for number in (0, 1) for rank in range(STAGES)]
    report = run(ledger(rows + calm, run=about, groups=groups, steps=steps))
    assert "pipeline-bubble" not in {finding.kind for finding in report.findings}
    twice = [replace(row, step=1) for row in rows]
    report = run(ledger(rows + twice, run=about, groups=groups, steps=steps))
    assert "pipeline-bubble" in {finding.kind for finding in report.findings}
