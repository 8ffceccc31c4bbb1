"""Which marks of the page's figures are a finding's, against the ledger's own rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.dashboards.exports import perfetto
from shardtoll.dashboards.facts import calls, sites
from shardtoll.dashboards.facts.spoken import spoken
from shardtoll.dashboards.page.views import anatomy as page_anatomy
from shardtoll.dashboards.page.views import light as page_light
from shardtoll.dashboards.page.views import operators, timeline, views
from shardtoll.ledger import Finding, Where
from shardtoll.ledger.answers.step_roofline import OpRoofline, RankRoofline, StepRoofline
from tests import sample_reports
from tests.place_rows import with_rows


@pytest.mark.parametrize("name", ["report", "hostile", "unknown", "empty"])
def test_spoken_of_are_the_rows_that_the_findings_name(name: str):
    report = getattr(sample_reports, name)()
    said = spoken(report)
    length = report.tables["collectives"].num_rows
    for number, finding in enumerate(report.findings, start=1):
        wanted = finding.rows.mask("collectives", length)
        assert wanted.any() == (number in said.flags)
        if number in said.flags:
            assert (said.rows(number) == wanted).all()


def test_groups_that_hold_a_row_of_a_finding():
    report = sample_reports.report()
    said = spoken(report)
    ranks = report.collectives["rank"].to_numpy(dtype=np.int64)
    assert said.of_groups(ranks, 4) == {1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}
    assert said.of_groups(np.where(ranks == 2, ranks, -1), 4) == {1: [2], 2: [2]}


def test_sites_know_their_findings():
    found = sites.sites(sample_reports.report())
    by_op = {(site.op, site.asked): site.findings for site in found if (site.message_bytes or 0) >= 1 << 12}
    assert by_op == {("all_reduce", "implicit"): (2,), ("all_gather", "explicit"): (1,)}


def test_a_roofline_marks_the_sites_of_a_finding():
    figure = next(view for view in views.VIEWS if view.name == "roofline").figure(sample_reports.report())
    names = [trace["name"] for trace in figure.data]
    assert figure.marks[1] == {names.index("all_gather, explicit"): [0]}
    assert figure.marks[2] == {names.index("all_reduce, implicit"): [0, 1, 2, 3]}


def test_a_timeline_marks_collectives_in_their_own_trace():
    report = sample_reports.report()
    figure = timeline.figure(report)
    places = {trace["name"]: at for at, trace in enumerate(figure.data)}
    explicit = figure.data[places["explicit"]]["rects"]["pick"]
    assert figure.marks[1] == {places["explicit"]: list(range(len(explicit)))}
    assert len(figure.marks[2][places["implicit"]]) == 32
    assert 3 not in figure.marks


def test_folded_bars_are_marked_where_they_hold_one():
    report = sample_reports.many(4, 500)
    figure = timeline.figure(report, drawn=300)
    places = {trace["name"]: at for at, trace in enumerate(figure.data)}
    # No module of that run is the finding's; all are, once it names none.
    assert 2 not in figure.marks
    finding = replace(sample_reports.FINDINGS[0], where=Where(phase="forward", group="tp"), ranks=(1,))
    figure = timeline.figure(with_rows(replace(report, findings=(finding,))), drawn=300)
    table, marked = figure.columns["folded"], figure.marks[1][places["folded"]]
    assert {table["row"][at] for at in marked} == {1}
    assert len(marked) == sum(row == 1 for row in table["row"])
    assert len(figure.marks[1][places["implicit"]]) == sum(row == 1 for row in figure.columns["calls"]["row"])


def test_a_finding_on_whole_steps_marks_those_of_its_ranks():
    finding = Finding("straggler", "warning", "rank 2 is late", 1, None, None, None, 1, (2,))
    report = sample_reports.report(findings=(finding,))
    figure = timeline.figure(report)
    steps = figure.columns["steps"]
    assert figure.marks == {1: {0: [2, 6]}}
    assert {steps["row"][at] for at in (2, 6)} == {4.5}
    # The time is lost by those who wait for it.
    anatomy = page_anatomy.figure(report)
    assert anatomy.data[1]["name"] == "exposed: waiting"
    assert anatomy.marks == {1: {1: [0, 1, 3]}}


def test_page_server_and_trace_light_no_collectives_for_what_is_computed_twice():
    where = Where(module="blocks.0.mlp")
    about = Finding("exposed-communication", "warning", "x", 9, None, None, None, 1, (0, 1), where)
    others = [replace(about, kind=kind) for kind in ("duplicated-compute", "straggler", "data-stall")]
    report = sample_reports.report(findings=(about, *others))
    numbers = dict(enumerate(report.findings, start=1))
    (own,) = [number for number, finding in numbers.items() if finding.kind == about.kind]
    assert {number for site in sites.sites(report) for number in site.findings} == {own}
    assert list(calls.calls(report).findings) == [own]
    pieces = "".join(perfetto.pieces(report))
    assert f'"findings":"#{own}"' in pieces
    assert '"findings":"#' not in pieces.replace(f'"findings":"#{own}"', "")
    # What it can show of them is the steps of their ranks.
    figure = timeline.figure(report)
    lit = {number: marks for number, marks in figure.marks.items() if number != own}
    assert lit == {number: {0: [0, 1, 4, 5]} for number in numbers if number != own}


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("duplicated-compute", ["compute"]),
        ("data-stall", ["idle"]),
        ("transfer-stall", ["exposed copies"]),
        ("unattributed-time", ["unattributed"]),
        (
            "exposed-communication",
            ["exposed: waiting", "exposed: moving", "exposed: waiting or moving unknown"],
        ),
        ("wrong-gradient", []),
    ],
)
def test_bars_of_a_finding_are_the_parts_that_hold_its_time(kind: str, parts: list[str]):
    finding = Finding(kind, "warning", "x", 1, None, None, None, 1, (1, 3))
    figure = page_anatomy.figure(sample_reports.report(findings=(finding,)))
    names = [trace["name"] for trace in figure.data]
    assert figure.marks == ({1: {names.index(part): [1, 3] for part in parts}} if parts else {})


def test_hardware_figures_mark_steps_and_operators():
    ranks = tuple(RankRoofline(rank=rank, steps=1, took_ns=9, exposed_comm_ns=1) for rank in range(3))
    names = ("aten.mm.default", "aten.bmm.default", "aten.mm.default")
    ops = tuple(OpRoofline(name, "f32", None, 1.0, 100, 10, 10.0, 5, 1.0, 3, "compute") for name in names)
    found = StepRoofline("H100", None, {"f32": 60.0}, 3000.0, ranks=ranks, ops=ops)
    where = Where(op="aten.mm.default")
    billed = Finding("duplicated-compute", "warning", "x", 5, None, None, None, 1, (0, 2), where)
    unpriced = replace(billed, kind="wrong-gradient", toll_ns=None)
    light = page_light.figure(found, (billed, unpriced))
    assert light.data[3]["name"] == "took"
    assert light.marks == {1: {3: [0, 2]}}
    drawn = operators.figure(found, (billed, unpriced))
    (trace, points), *rest = drawn.marks[1].items()
    assert (drawn.data[trace]["name"], points, rest) == ("bound by compute", [0, 2], [])
    assert set(drawn.marks) == {1}


def test_every_mark_is_one_of_its_trace():
    report = sample_reports.hostile()
    for view in views.VIEWS:
        figure = view.figure(report)
        for traces in figure.marks.values():
            for at, points in traces.items():
                trace = figure.data[at]
                if "rects" in trace:
                    number = len(trace["rects"]["pick"])
                elif trace["type"] in ("scatter", "bar"):
                    number = len(trace["x"])
                else:
                    continue
                assert points
                assert points == sorted(set(points))
                assert points[0] >= 0
                assert points[-1] < number
