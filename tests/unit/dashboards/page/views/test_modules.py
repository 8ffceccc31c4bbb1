"""The toll of modules as a treemap: areas add up, layers fold, unknown stays apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.page.views import modules
from shardtoll.ledger import Collective, Finding, Report, Step, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.place_rows import with_rows
from tests.sample_reports import collective


def of(*rows: Collective, findings: tuple[Finding, ...] = ()) -> Report:
    base = sample_reports.report()
    steps = [Step(at, rank, 0, 10, 10, 0, 0, 0, 0) for at in range(2) for rank in range(2)]
    tables = {**base.tables, "collectives": to_table("collectives", rows), "steps": to_table("steps", steps)}
    return replace(base, tables=tables, findings=findings)


def doubled(toll: int | None, module: str | None) -> Finding:
    where = Where(module=module)
    return Finding("duplicated-compute", "info", "t", toll, None, None, None, 1, (0, 1), where)


ROWS = (
    collective(0, 0, 0, 8, module="blocks.0.mlp", exposed_ns=400),
    collective(1, 1, 1, 8, module="blocks.1.mlp", exposed_ns=800),
    collective(0, 0, 2, 8, module="blocks.0.attn.q", exposed_ns=200, implicit=False),
    collective(0, 1, 3, 8, module="", exposed_ns=80, implicit=None, op="all_gather"),
    collective(0, 1, 4, 8, module=None, exposed_ns=40, phase="optimizer"),
    collective(0, 1, 5, 8, module="head", exposed_ns=None),
)
"""Two ranks, two steps: what is drawn is a quarter of each sum."""


def test_every_parent_is_the_sum_of_what_is_inside():
    report = of(*ROWS, findings=(doubled(70, "blocks.*.mlp"), doubled(5, None), doubled(None, "head")))
    figure = modules.figure(report)
    (trace,) = figure.data
    inside = dict.fromkeys(trace["ids"], 0)
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        if parent:
            inside[parent] += value
    parents = [at for at in trace["ids"] if at in trace["parents"]]
    assert [inside[at] for at in parents] == [trace["values"][int(at)] for at in parents]
    assert trace["values"][0] == (400 + 800 + 200 + 80 + 40) // 4 + 70 + 5
    assert trace["branchvalues"] == "total"
    assert "1 collective not counted: exposed time is unknown." in figure.notes
    assert any("1 finding of duplicated compute without a known time" in note for note in figure.notes)


def test_layers_are_one_and_the_dearest_is_told():
    (trace,) = modules.figure(of(*ROWS)).data
    values = dict(zip(trace["labels"], trace["values"], strict=True))
    assert values["blocks.*"] == 350
    assert values["mlp"] == 300
    assert values["attn.q"] == 50
    assert values["(root)"] == 20
    assert values["no module on record, optimizer"] == 10
    assert "head" not in values
    (words,) = [text for text in trace["hovertext"] if "dearest layer" in text]
    assert "blocks.1.mlp: 200 ns" in words


def test_a_finding_marks_its_leaves():
    finding = Finding(
        "wide-dtype", "info", "t", None, None, None, None, 1, (0, 1), Where(module="blocks.*.mlp")
    )
    figure = modules.figure(with_rows(of(*ROWS, findings=(finding, doubled(70, "head")))))
    (trace,) = figure.data
    named = {number: [trace["labels"][at] for at in points[0]] for number, points in figure.marks.items()}
    assert named == {2: ["all_reduce"], 1: [modules.TWICE]}
    (leaf,) = figure.marks[2][0]
    assert trace["labels"][int(trace["parents"][leaf])] == "mlp"


def test_many_leaves_are_folded_and_the_whole_stays():
    rows = [collective(0, 0, at, 8, module=f"m{at}x", exposed_ns=4 * (at + 1)) for at in range(300)]
    figure = modules.figure(of(*rows))
    (trace,) = figure.data
    assert trace["values"][0] == sum(range(1, 301))
    assert any(note.startswith("The 159 most expensive of 300 parts are shown") for note in figure.notes)
    assert trace["values"][trace["labels"].index("cheaper ones")] == sum(range(1, 142))


@pytest.mark.parametrize(
    "report", [sample_reports.empty(), sample_reports.unknown()], ids=["empty", "unknown"]
)
def test_nothing_known_nothing_drawn(report: Report):
    assert modules.figure(report).empty
    assert modules.numbers(report) == ""


def test_names_stay_text():
    (trace,) = modules.figure(sample_reports.hostile()).data
    assert "<script>" not in "".join(trace["labels"] + trace["hovertext"])
    assert "<script>" not in modules.numbers(sample_reports.hostile())
