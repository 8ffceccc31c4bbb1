"""Lost time that an audit tells of without a trace: waiting for data, reads of values, who is late where."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from shardtoll.ledger import Finding, Report
from shardtoll.samples.incidents.common import Expected, Incident
from tests.live import stall_programs as programs
from tests.live.launch import run_ranks

pytestmark = [pytest.mark.live, pytest.mark.alone]

SLEEP_NS = int(programs.SLEEP_S * 1e9)
STEPS = programs.STEPS
INCIDENTS = (
    "slow_loader",
    "item_sync",
    "one_late_rank",
    "uneven_pipeline",
    "ddp_one_bucket",
    "clip_many",
)


@cache
def ran(program: Callable[..., str | None], *args: Any) -> Report:
    return Report.from_json(run_ranks(program, 2, *args)[0])


def of(report: Report, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


@pytest.mark.parametrize("level", ["survey", "schedule", "watch"])
def test_a_loader_that_keeps_one_rank_waiting_is_found_on_that_rank_and_line(level: str) -> None:
    report = ran(programs.loader, level)
    (finding,) = of(report, "data-stall")
    assert finding.ranks == (programs.LATE,)
    assert SLEEP_NS <= (finding.toll_ns or 0) < 5 * SLEEP_NS
    assert "between steps, once per step" in finding.title
    # The nearest line of the user's: the generator that goes through the loader.
    assert "stall_programs.py" in (finding.where.source or "")
    assert "(_batches)" in (finding.where.source or "")
    assert len(report.steps) == 2 * programs.STEPS


def test_the_others_wait_for_the_rank_whose_batch_is_late() -> None:
    finding = max(of(ran(programs.loader, "survey"), "straggler"), key=lambda one: one.toll_ns or 0)
    assert finding.ranks == (programs.LATE,)
    assert "idle while its batch is fetched" in finding.title


@pytest.mark.parametrize("level", ["survey", "schedule", "watch"])
def test_a_fetch_inside_the_step_is_in_its_duration(level: str) -> None:
    report = ran(programs.inside, level)
    (finding,) = of(report, "data-stall")
    assert finding.ranks == (programs.LATE,)
    assert "inside the step" in finding.title
    assert SLEEP_NS <= (finding.toll_ns or 0) < 5 * SLEEP_NS
    steps = report.steps[report.steps["rank"] == programs.LATE]
    assert (steps["duration_ns"] > SLEEP_NS).all()
    stalls = report.stalls[(report.stalls["rank"] == programs.LATE) & (report.stalls["kind"] == "data")]
    joined = stalls.merge(steps, on="step")
    known = joined["idle_ns"] + joined["unattributed_ns"]
    assert (joined["lost_ns"] <= known).all()
    assert (joined["lost_ns"] >= SLEEP_NS * 9 // 10).all()


def test_a_loader_with_workers_is_looped_as_any_other() -> None:
    report = ran(programs.workers)
    stalls = report.stalls[report.stalls["name"] == "DataLoader.__next__"]
    assert stalls.groupby("rank")["count"].sum().tolist() == [programs.STEPS] * 2
    assert set(stalls["samples"]) == {1}
    assert set(report.stalls["name"]) >= {"DataLoader.__iter__"}
    assert report.stalls[report.stalls["name"] != "DataLoader.__next__"]["samples"].isna().all()


def test_a_generator_of_the_users_shows_as_time_between_steps() -> None:
    (finding,) = of(ran(programs.own_generator), "data-stall")
    assert (finding.ranks, finding.confidence, finding.severity) == ((programs.LATE,), "possible", "info")
    assert SLEEP_NS <= (finding.toll_ns or 0) < 5 * SLEEP_NS


@pytest.mark.parametrize(
    ("where", "phase", "place"),
    [("forward", "forward", "aten.addmm.default of 2.linear"), ("optimizer", "optimizer", "the step's end")],
)
def test_a_late_rank_is_late_in_the_phase_and_place_where_it_slept(
    where: str, phase: str, place: str
) -> None:
    finding = max(of(ran(programs.late, where), "straggler"), key=lambda one: one.toll_ns or 0)
    assert finding.ranks == (programs.LATE,)
    assert finding.where.phase == phase
    assert (finding.where.op or "").endswith(f"and {place}")


def test_reads_are_counted_by_line_and_an_optimizers_own_are_not() -> None:
    rows = run_ranks(programs.reads, 2)[0]
    stalls = [row for row in rows if row["table"] == "stalls" and row["kind"] == "host-sync"]
    reads = [row for row in stalls if row["count"]]
    counts = {step: sum(row["count"] for row in reads if row["step"] == step) for step in range(STEPS)}
    # Three of the metric, one of the mean; AdamW reads its count of steps for each parameter as well.
    assert counts == dict.fromkeys(range(STEPS), 4)
    assert all("(reads)" in row["source"] for row in reads)
    waited = [row for row in stalls if not row["count"]]
    assert len(waited) == programs.STEPS
    # On a busy machine rank 0 may come late as well, but not in every step.
    assert max(row["total_ns"] for row in waited) > 0.8 * SLEEP_NS
    assert all(row["total_ns"] < 0.5 * SLEEP_NS for row in reads)
    for row in rows:
        if row["table"] == "steps":
            parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
            assert sum(row[part] for part in parts) == pytest.approx(row["duration_ns"], rel=1e-3)


def described(name: str) -> Incident:
    incident = importlib.import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    assert isinstance(incident, Incident)
    return incident


@cache
def bill(name: str, fixed: bool) -> Report:
    return Report.from_json(run_ranks(programs.incident, described(name).ranks, name, fixed)[0])


def matching(report: Report, expected: Expected) -> list[Finding]:
    found = []
    for finding in of(report, expected.kind):
        where = finding.where
        places = (where.parameter, where.module, where.source, where.op, where.mesh_dim)
        if any(expected.place in place for place in places if place):
            found.append(finding)
    return found


def words(finding: Finding) -> str:
    remedy = finding.remedy
    said = [finding.title, *(f"{item.label} {item.value}" for item in finding.evidence)]
    return " ".join(said + ([] if remedy is None else [remedy.text, remedy.code or ""]))


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_is_found_with_its_place_size_and_words(name: str) -> None:
    report = bill(name, False)
    for expected in described(name).expected:
        fitting = [
            finding
            for finding in matching(report, expected)
            if (expected.bytes is None or finding.bytes == expected.bytes)
            and (
                expected.toll_ns is None
                or expected.toll_ns[0] <= (finding.toll_ns or 0) <= expected.toll_ns[1]
            )
            and all(text in words(finding) for text in expected.says)
        ]
        assert fitting, [(finding.title, finding.where, finding.toll_ns) for finding in report.findings]
        assert all(finding.remedy is not None and finding.remedy.code for finding in fitting)


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_mended_incident_has_none_of_its_findings(name: str) -> None:
    report = bill(name, True)
    for expected in described(name).expected:
        assert [finding.title for finding in matching(report, expected)] == []
