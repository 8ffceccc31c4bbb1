"""Duplicated work as bars: the numbers are the findings' own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.dashboards.page.views import duplicated
from shardtoll.ledger import Compute, Evidence, Figure, Finding, Report, Step, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports


def doubled(done: int | None, needed: int, toll: int | None = 1000, **where: str) -> Finding:
    evidence = (Evidence("shown by", "every input is Replicate over tp"),)
    figures = [Figure("flops_needed", needed, "flops")]
    if done is not None:
        figures.append(Figure("flops_done", done, "flops"))
    return Finding(
        kind="duplicated-compute",
        severity="info",
        title="t",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=(0, 1),
        where=Where(**where),
        evidence=evidence,
        figures=tuple(figures),
    )


def of(*findings: Finding) -> Report:
    base = sample_reports.report()
    steps = [Step(at, 0, 0, 10, 10, 0, 0, 0, 0) for at in range(2)]
    work = [Compute(at, 0, 0, "aten.mm.default", 5000, 0, 9, "forward", "f32[8,8]") for at in range(2)]
    tables = {**base.tables, "computes": to_table("computes", work), "steps": to_table("steps", steps)}
    return replace(base, findings=findings, tables=tables)


DATA = Finding("duplicated-data", "warning", "t", None, None, None, None, 1, (0, 1), Where(op="input"))
SMALL = doubled(300, 100, module="head", phase="forward", mesh_dim="tp")
LARGE = doubled(4000, 2000, module="blocks.*.mlp", phase="backward", mesh_dim="tp")


def test_bars_are_what_is_needed_and_what_is_done_beyond():
    figure = duplicated.figure(of(SMALL, replace(DATA, toll_ns=1000), LARGE))
    needed, beyond = figure.data
    assert needed["x"] == [2000, 100]
    assert beyond["x"] == [2000, 200]
    assert (
        needed["y"]
        == beyond["y"]
        == [
            "#3 blocks.*.mlp · backward<br>mesh dim tp",
            "#2 head · forward<br>mesh dim tp",
        ]
    )
    # The finding's number on the bill, not its place here.
    assert figure.marks == {2: {0: [1], 1: [1]}, 3: {0: [0], 1: [0]}}
    assert figure.notes[0] == ("2.20 kFLOP (44 %) of the 5.00 kFLOP per step on all ranks seen are needless.")


def test_what_has_no_flops_stands_in_the_table_alone():
    figure = duplicated.figure(of(DATA))
    assert figure.empty
    assert figure.notes == ["1 finding of duplicated work or data without FLOPs: only in the table."]
    text = duplicated.numbers(of(DATA))
    assert '<a href="#finding-1">1</a> duplicated-data' in text
    assert "unknown" in text


def test_many_places_are_cut_and_said_to_be():
    figure = duplicated.figure(of(*(doubled(100 + at, 50, module=f"m{at}") for at in range(40))))
    assert len(figure.data[0]["x"]) == duplicated.BARS
    assert figure.data[1]["x"][0] == 89
    rest = sum(50 + at for at in range(10))
    assert f"the 10 others, {rest} FLOP too many" in figure.notes[-1]


@pytest.mark.parametrize("report", [sample_reports.empty(), of()], ids=["empty", "no finding"])
def test_nothing_found_nothing_shown(report: Report):
    figure = duplicated.figure(report)
    assert figure.empty
    assert not figure.notes
    assert duplicated.numbers(report) == ""


def test_names_stay_text():
    bad = sample_reports.HOSTILE["script"]
    report = of(doubled(2, 1, module=bad, source=bad, mesh_dim=bad, phase="forward"))
    figure = duplicated.figure(report)
    assert "<script>" not in "".join(figure.data[0]["y"] + figure.data[0]["hovertext"])
    assert "<script>" not in duplicated.numbers(report)


def test_flops_that_are_no_figure_are_unknown():
    odd = replace(SMALL, evidence=(Evidence("FLOPs done per step", 300, "FLOP"),), figures=())
    assert duplicated.figure(of(odd)).empty


def test_what_repeats_the_work_is_named_where_it_is_known_only():
    figure = duplicated.figure(of(doubled(4000, 2000, module="head", phase="forward")))
    assert figure.data[0]["y"] == ["#1 head · forward"]
    assert "what repeats it is unknown" in figure.data[0]["hovertext"][0]
