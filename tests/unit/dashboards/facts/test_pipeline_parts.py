"""The stages of a pipeline in time: bubbles as the finding has them, work from operators or lead-ups."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.dashboards.facts.pipeline_parts import MOVING, WAITING
from shardtoll.dashboards.page.views import page_pipeline
from shardtoll.ledger import Collective, Compute, Group, Leadup, Report, SchemaError, Stall
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of


def at(start: int, lasts: int) -> dict[str, int]:
    return {"start_ns": start, "issue_ns": start, "duration_ns": lasts, "exposed_ns": lasts}


def messages(stages: int, batches: int, waited: int, mesh_dim: str | None) -> list[Collective]:
    """Activations up, gradients down; every receive waits `waited`, then both ends move for 0.1 ms."""
    rows: list[Collective] = []
    start = MS

    def pair(sender: int, receiver: int, phase: str) -> None:
        nonlocal start
        about = {"group": "g", "group_size": stages, "mesh_dim": mesh_dim, "phase": phase, "seq": None}
        about |= {"message_bytes": 64, "source": "train.py:5 (step)"}
        rows.append(
            collective(rank=sender, op="send", root=receiver, **about, **at(start + waited, MS // 10))
        )
        rows.append(
            collective(rank=receiver, op="recv", root=sender, **about, **at(start, waited + MS // 10))
        )
        start += waited + MS // 10

    for _ in range(batches):
        for stage in range(stages - 1):
            pair(stage, stage + 1, "forward")
        for stage in reversed(range(stages - 1)):
            pair(stage + 1, stage, "backward")
    return rows


def of(stages: int = 4, batches: int = 4, waited: int = 9 * MS, mesh_dim: str | None = "pp") -> Report:
    mesh = {} if mesh_dim is None else {mesh_dim: stages}
    groups = (Group("g", tuple(range(stages)), mesh_dim),)
    return run(
        ledger(messages(stages, batches, waited, mesh_dim), run=run_of(stages, mesh=mesh), groups=groups)
    )


@pytest.mark.parametrize("mesh_dim", [None, "pp"])
def test_the_worst_stages_bubble_is_the_findings(mesh_dim: str | None):
    report = of(mesh_dim=mesh_dim)
    (finding,) = [one for one in report.findings if one.kind == "pipeline-bubble"]
    said = {item.label: item.value for item in finding.evidence}
    found = report.pipelines
    assert found is not None
    assert found.step_ns
    lost = {stage.rank: stage.lost_ns for stage in found.stages}
    shares = {rank: lost[rank] / found.step_ns for rank in range(4)}
    # Stages between receive twice a micro-batch, the ends once.
    assert shares == pytest.approx({0: 0.36, 1: 0.72, 2: 0.72, 3: 0.36})
    assert round(max(shares.values()), 4) == said["bubble, share of the step"]
    assert max(lost.values()) == finding.toll_ns
    assert found.lines == ((0, 1, 2, 3),)


def test_idle_time_in_the_schedule_is_bubble_too():
    base = of()
    stall = Stall(0, 2, "bubble", "", "forward", 1, 5 * MS, 5 * MS)
    stages = (Group("g", (0, 1, 2, 3), "pp"),)
    book = ledger(
        messages(4, 4, 9 * MS, "pp"), run=replace(base.run, source="trace"), groups=stages, stalls=[stall]
    )
    report = run(book)
    (finding,) = [one for one in report.findings if one.kind == "pipeline-bubble"]
    found = report.pipelines
    assert found is not None
    (stage,) = (each for each in found.stages if each.rank == 2)
    assert stage.lost_ns == 77 * MS == finding.toll_ns
    assert (stage.recv_ns, stage.send_ns, stage.idle_ns) == (72 * MS, 0, 5 * MS)
    assert "idle in the schedule" in page_pipeline.numbers(report)


def test_every_stage_has_a_row_and_bubbles_are_drawn_before_the_message_moves():
    figure = page_pipeline.figure(of(stages=2, batches=1, waited=4 * MS))
    by_name = {trace["name"]: trace for trace in figure.data}
    assert figure.layout["yaxis"]["categoryarray"] == ["stage 0, rank 0: 4.0 %", "stage 1, rank 1: 4.0 %"]
    waiting, moving = by_name[WAITING], by_name[MOVING]
    assert dict(zip(waiting["y"], waiting["base"], strict=True)) == {
        "stage 1, rank 1: 4.0 %": 0.0,
        "stage 0, rank 0: 4.0 %": 4.1,
    }
    assert waiting["x"] == [4.0, 4.0]
    assert sorted(moving["x"]) == [0.1] * 4


def test_operators_are_work_and_numbered_by_micro_batch():
    report = of(stages=2, batches=2)
    work = [
        # Rank 0 sends at 10 and 28.2 ms, so that its forwards are apart; a backward follows each receive.
        Compute(0, 0, 0, "aten.mm.default", 9, 1 * MS, MS, "forward", "f"),
        Compute(0, 0, 1, "aten.mm.default", 9, 2 * MS, MS, "forward", "f"),
        Compute(0, 0, 2, "aten.mm.default", 9, 20 * MS, MS, "backward", "f"),
        Compute(0, 0, 3, "aten.mm.default", 9, 22 * MS, MS, "forward", "f"),
        Compute(0, 0, 4, "aten.mm.default", 9, 38 * MS, MS, "backward", "f"),
        Compute(0, 0, 5, "aten.add.default", 9, 39 * MS, MS, "optimizer", "f"),
        Compute(0, 0, 6, "aten.mm.default", 9, 50 * MS, None, "forward", "f"),
    ]
    report = replace(report, tables={**report.tables, "computes": to_table("computes", work)})
    by_name = {trace["name"]: trace for trace in page_pipeline.figure(report).data}
    assert by_name["forward"]["x"] == [2.0, 1.0]
    assert by_name["forward"]["text"] == ["0", "1"]
    assert by_name["backward"]["text"] == ["0", "1"]
    assert by_name["optimizer"]["text"] == [""]


def test_work_hides_no_bubble_twice():
    report = of(stages=2, batches=1, waited=4 * MS)
    # Rank 1 computes in the midst of its wait from 1 to 5 ms.
    work = [Compute(0, 1, 0, "aten.mm.default", 9, 2 * MS, MS, "forward", "f")]
    report = replace(report, tables={**report.tables, "computes": to_table("computes", work)})
    (waiting,) = [trace for trace in page_pipeline.figure(report).data if trace["name"] == WAITING]
    own = [
        (start, length)
        for name, start, length in zip(waiting["y"], waiting["base"], waiting["x"], strict=True)
        if name.startswith("stage 1")
    ]
    assert own == [(0.0, 1.0), (2.0, 2.0)]


def test_lead_ups_stand_in_where_operators_have_no_times():
    report = of(stages=2, batches=1, waited=4 * MS)
    ups = [Leadup(0, 0, 0, 0, 3 * MS, 0, 0, 0, 0, 0, "forward")]
    report = replace(report, tables={**report.tables, "leadups": to_table("leadups", ups)})
    figure = page_pipeline.figure(report)
    (forward,) = [trace for trace in figure.data if trace["name"] == "forward"]
    # The send of rank 0 begins at 5 ms; the figure at 1 ms.
    assert (forward["base"], forward["x"]) == ([1.0], [3.0])
    assert any("what follows a stage's last message is not on record" in note for note in figure.notes)


def test_the_bubble_marks_its_waits():
    report = of()
    (number,) = [at for at, one in enumerate(report.findings, 1) if one.kind == "pipeline-bubble"]
    figure = page_pipeline.figure(report)
    names = {figure.data[trace]["name"] for trace in figure.marks[number]}
    assert names == {WAITING}
    (points,) = figure.marks[number].values()
    finding = report.findings[number - 1]
    waiting = next(trace for trace in figure.data if trace["name"] == WAITING)
    assert {int(waiting["y"][at].split("rank ")[1].split(":")[0]) for at in points} == set(finding.ranks)


def test_a_long_schedule_is_joined_to_few_bars():
    figure = page_pipeline.figure(of(stages=4, batches=400, waited=MS // 100))
    assert sum(len(trace["x"]) for trace in figure.data) <= page_pipeline.BARS
    assert any("are drawn as one" in note for note in figure.notes)


@pytest.mark.parametrize("kind", ["report", "empty", "hostile"])
def test_no_pipeline_no_figure(kind: str):
    report = getattr(sample_reports, kind)()
    figure = page_pipeline.figure(report)
    assert figure.empty
    assert not figure.notes
    assert page_pipeline.numbers(report) == ""


@pytest.mark.parametrize(
    "hostile",
    [{"step": 10**18}, {"step": -1}, {"rank": 3, "root": 10**9}, {"root": -(2**31)}, {"root": None}],
)
def test_numbers_that_no_job_has_are_drawn_or_passed_over(hostile: dict[str, int | None]):
    """Each in one message of a report that somebody else wrote."""
    document = json.loads(of().to_json())
    document["collectives"][5] |= hostile
    for steps in (document["pipelines"]["steps"], [10**18, -1]):
        document["pipelines"]["steps"] = steps
        try:
            read = Report.from_json(json.dumps(document))
        except SchemaError:
            continue
        page_pipeline.figure(read)
        page_pipeline.numbers(read)


def test_a_rings_messages_are_no_pipeline():
    rows = [row for row in messages(4, 2, 9 * MS, None) if row.phase == "forward"]
    about = {"group": "g", "group_size": 4, "mesh_dim": None, "phase": "forward", "seq": None}
    about |= {"message_bytes": 64, **at(90 * MS, MS)}
    back = [
        collective(rank=3, op="send", root=0, **about),
        collective(rank=0, op="recv", root=3, **about),
    ]
    report = run(ledger(rows + back, run=run_of(4), groups=(Group("g", (0, 1, 2, 3), None),)))
    assert report.pipelines is None
