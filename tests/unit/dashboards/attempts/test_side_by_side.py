"""The comparison of attempts: its figures from known reports, its two faces, hostile names."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from shardtoll.dashboards.attempts import side_by_side_page, side_by_side_terminal
from shardtoll.dashboards.attempts.side_by_side import Attempt, bill_lines, rows
from shardtoll.ledger import Figure, Finding, Notice, Report, Step, Where
from shardtoll.ledger.tables.tables import to_records, to_table
from shardtoll.ledger.words import human
from tests import sample_reports


def with_tables(report: Report, **tables: list[Any]) -> Report:
    changed = {name: to_table(name, records) for name, records in tables.items()}
    return replace(report, tables={**report.tables, **changed})


def cell(report: Report, label: str) -> str:
    found = {row.label: row.cells[0] for row in rows([Attempt("a", "lesson", report)])}
    return found[label]


def wrong(title: str = "gradient of weight is wrong") -> Finding:
    return Finding(
        "wrong-gradient", "error", title, None, None, None, None, 1, (0,), Where(parameter="weight")
    )


def test_a_gradient_is_right_only_where_somebody_looked() -> None:
    bare = sample_reports.empty()
    assert cell(bare, "gradient") == "not checked"
    checked = with_tables(bare, notices=[Notice(0, "gradients-checked", "all equal", None)])
    assert cell(checked, "gradient") == "right"
    assert cell(replace(checked, findings=(wrong(),)), "gradient") == "WRONG: gradient of weight is wrong"


def test_times_are_of_the_rank_with_the_largest_mean() -> None:
    steps = [
        Step(0, 0, 0, 100, 40, 50, 0, 0, 10, 10),
        Step(0, 1, 0, 90, 80, 10, 0, 0, 0, 0),
        Step(1, 0, 200, 60, 50, 10, 0, 0, 0, 0),
        Step(1, 1, 200, 70, 40, 30, 0, 0, 0, 0),
    ]
    empty = sample_reports.empty()
    report = with_tables(replace(empty, run=replace(empty.run, ranks_seen=(0, 1))), steps=steps)
    assert cell(report, "exposed communication") == "30 ns", "rank 0: (50 + 10) / 2"
    assert cell(report, "step, capture left out") == "80 ns", "rank 1: (90 + 70) / 2"


def test_untold_exposed_communication_is_no_zero() -> None:
    steps = [replace(Step(n, 0, 0, 100, 0, 0, 0, 0, 100), level="watch") for n in range(2)]
    report = with_tables(sample_reports.empty(), steps=steps, collectives=[])
    assert cell(report, "exposed communication") == "0 ns"
    untimed = replace(sample_reports.collectives()[0], step=1, rank=0, exposed_ns=None)
    partly = with_tables(report, steps=[replace(steps[0], exposed_comm_ns=40, unattributed_ns=60), steps[1]],
                         collectives=[untimed])  # fmt: skip
    assert cell(partly, "exposed communication") == "40 ns", "over the step that tells it"
    for step in (0, 1):
        bound = with_tables(partly, collectives=[replace(untimed, step=0), replace(untimed, step=step)])
        assert cell(bound, "exposed communication") == "unknown"
    assert cell(with_tables(report, collectives=[untimed, replace(untimed, step=0)]),
                "exposed communication") == "unknown"  # fmt: skip


def test_unknown_stays_unknown() -> None:
    report = with_tables(sample_reports.empty(), steps=[], collectives=[], computes=[])
    for label in ("exposed communication", "collectives", "message bytes", "matmul FLOPs, all ranks"):
        assert cell(report, label) == "unknown"


def test_duplicated_flops_give_a_factor() -> None:
    report = sample_reports.report()
    done = sum(c["flops"] for c in report.tables["computes"].to_pylist() if c["step"] is not None)
    steps = len({s["step"] for s in report.tables["steps"].to_pylist()})
    assert done, "the sample has operators"
    spare = done // steps // 2
    twice = Finding(
        "duplicated-compute",
        "warning",
        "twice",
        7,
        None,
        7,
        None,
        1,
        (0, 1),
        figures=(Figure("flops_too_many", spare, "flops"),),
    )
    found = replace(report, findings=(replace(twice, where=Where(op="aten.mm.default", phase="backward")),))
    assert "needed (2x)" in cell(found, "matmul FLOPs, all ranks")
    assert cell(found, "matmuls done twice") == "7 ns"
    assert cell(replace(report, findings=()), "matmuls done twice") == "none"


def repeated(toll_ns: int | None, op: str, phase: str = "forward") -> Finding:
    costs = {"toll_ns": toll_ns, "floor_ns": None, "saving_ns": toll_ns, "bytes": None}
    return Finding(
        "duplicated-compute", "info", "t", **costs, count=1, ranks=(0, 1), where=Where(op=op, phase=phase)
    )


def test_the_toll_is_what_is_exposed_and_what_is_done_twice_but_no_choice() -> None:
    report = with_tables(sample_reports.empty(), steps=[Step(0, 0, 0, 100, 40, 50, 0, 0, 10, 10)])
    assert cell(report, "toll: exposed, and matmuls done twice") == "50 ns"
    found = replace(
        report,
        findings=(
            repeated(7, "aten.mm.default"),
            repeated(30, "aten.native_layer_norm.default"),
            repeated(40, "optimizer.step", "optimizer"),
            repeated(50, "aten.mm.default", "optimizer"),
        ),
    )
    assert cell(found, "matmuls done twice") == "7 ns"
    assert cell(found, "toll: exposed, and matmuls done twice") == "57 ns"
    unknown = replace(found, findings=(repeated(None, "aten.mm.default"),))
    assert cell(unknown, "matmuls done twice") == "unknown"
    assert cell(unknown, "toll: exposed, and matmuls done twice") == "unknown"


def test_the_floor_is_that_of_all_collectives_or_unknown() -> None:
    report = sample_reports.report()
    rows = [c for c in to_records("collectives", report.tables["collectives"]) if c.step is not None]
    steps = len({step["step"] for step in report.tables["steps"].to_pylist()})
    known = with_tables(report, collectives=[replace(row, floor_ns=1000) for row in rows])
    most = max(sum(row.rank == rank for row in rows) for rank in {row.rank for row in rows})
    assert cell(known, "floor of the collectives") == human.duration(1000 * most / steps)
    lacking = [replace(row, floor_ns=None if at == 0 else 1000) for at, row in enumerate(rows)]
    assert cell(with_tables(report, collectives=lacking), "floor of the collectives") == "unknown"


def test_the_bill_is_cut_and_says_so() -> None:
    report = replace(sample_reports.empty(), findings=tuple(wrong(str(n)) for n in range(6)))
    lines = bill_lines(Attempt("a", "l", report))
    assert lines[0] == "1. wrong-gradient: weight"
    assert lines[-1] == "and 2 more on its own page"
    assert bill_lines(Attempt("a", "l", sample_reports.empty())) == ["nothing found"]


@pytest.mark.parametrize("width", [60, 200])
def test_the_terminal_shows_every_attempt_whole(width: int) -> None:
    attempts = [
        Attempt(name, f"lesson of {name}", sample_reports.report()) for name in ("one", "two", "three")
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(side_by_side_terminal.renderable(attempts, width))
    text = out.getvalue()
    assert "…" not in text, "nothing is cut silently"
    words = " ".join(text.replace("│", " ").split())
    for attempt in attempts:
        assert attempt.name in text
        if width == 60:
            assert attempt.lesson in words


def test_the_page_escapes_and_repeats_itself_to_the_byte() -> None:
    attempts = [Attempt("<script>alert(1)</script>", '"><b>', sample_reports.hostile(), 'x" onclick="y')]
    page = side_by_side_page.render("a & b", "<i>lead</i>", attempts)
    assert page == side_by_side_page.render("a & b", "<i>lead</i>", attempts)
    assert "<script" not in page
    assert 'href="x&quot; onclick=&quot;y"' in page
    assert "a &amp; b" in page
    assert "&lt;i&gt;lead" in page
    assert "default-src 'none'" in page
