"""What bars cannot show stands under them: waiting between steps, and idle time without a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen import under_bars
from shardtoll.dashboards.page.html.first import first_screen
from shardtoll.ledger import Figure, Finding, Notice, Report, Where
from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from shardtoll.ledger.tables.tables import to_records
from tests import sample_reports
from tests.unit.dashboards.attempts.test_side_by_side import with_tables
from tests.unit.dashboards.facts.test_summary import idle_report
from tests.unit.dashboards.terminal.test_first_screen import shown

MS = 1_000_000


def before(kind: str, before_ns: int, where: Where | None = None) -> Finding:
    return Finding(
        *(kind, "warning", "t", 50 * MS, None, None, None, 1, (1,), where or Where(source="train.py:7")),
        figures=(Figure("before_step_ns", before_ns, "ns"),),
    )


def test_waiting_between_steps_is_said_as_no_bar_holds_it():
    said = "Between steps, in no bar: 41.0 ms per step of waiting for a batch (rank 1, finding 2)."
    waits = (replace(before("host-sync", 0), figures=()), before("data-stall", 41 * MS))
    report = replace(sample_reports.report(), findings=waits)
    assert under_bars.sentences(report) == [said]
    assert said in shown(report, 100)
    assert said in first_screen(report)
    # 53 ms are a step: 2 ms before it are not worth a line.
    assert not under_bars.between_steps(replace(report, findings=(before("data-stall", 2 * MS),)))


def test_time_between_steps_without_a_reason_is_not_called_a_batch():
    report = replace(sample_reports.report(), findings=(before("data-stall", 41 * MS, Where()),))
    (said,) = under_bars.between_steps(report)
    assert said == "Between steps, in no bar: 41.0 ms per step, no record says why (rank 1, finding 1)."


def test_idle_time_without_a_finding_says_what_it_may_be_and_what_to_record():
    report = idle_report(70)
    live = replace(report, run=replace(report.run, source="live"))
    said = "Idle, in no finding: 70.0 ms (88 %) on rank 0: the host launches nothing then; "
    assert under_bars.not_explained(live) == f"{said}py-spy dump shows the line."
    trace = replace(report, run=replace(report.run, source="trace"))
    assert under_bars.not_explained(trace) == f"{said}trace with_stack=True to see its code."
    on_cpu = replace(live, run=replace(live.run, device="cpu"))
    assert "rank 0: Python, loading or sleep; py-spy" in (under_bars.not_explained(on_cpu) or "")
    assert "Idle, in no finding: 70.0 ms" in shown(live, 100)
    # A dry run's host ran nowhere: there is nothing to record.
    dry = replace(report, run=replace(report.run, source="dry"))
    (of_dry,) = (each for each in under_bars.sentences(dry) if each.startswith("Idle, in no finding"))
    assert of_dry == "Idle, in no finding: 70.0 ms (88 %) on rank 0: the host launches nothing then."
    # The page has it in the line under its verdict.
    assert "Idle, in no finding" not in first_screen(live)


def test_idle_time_that_findings_explain_is_not_mentioned():
    assert under_bars.sentences(replace(idle_report(70), unbilled=None)) == []
    assert under_bars.sentences(idle_report(2)) == []


def test_idle_time_names_the_code_that_the_host_was_in_where_a_record_tells():
    report = idle_report(70)
    assert report.unbilled is not None
    head = "Idle, in no finding: 70.0 ms (88 %) on rank 0: "

    def said(**fields: Any) -> str | None:
        unbilled = replace(report.unbilled, doing_ns=50.0 * MS, **fields)
        return under_bars.not_explained(replace(report, unbilled=unbilled))

    line, library = "data.py:4 (read)", "av/codec.py:9 (decode)"
    assert (
        said(source=line, library=library) == f"{head}for 50.0 ms its host is in {library}, called at {line}."
    )
    assert said(source=line) == f"{head}for 50.0 ms its host is in {line}."
    assert said(library=library) == f"{head}for 50.0 ms its host is in {library}."
    graph = "its host records a CUDA graph, and nothing of it runs yet; record steps that replay it"
    assert said(doing=GRAPH_CAPTURE) == f"{head}{graph}."
    # So does the line under the verdict of a bill that explains less.
    code = replace(report, unbilled=replace(report.unbilled, source=line, doing_ns=50.0 * MS))
    assert summary.second_line(code) == (
        f"No finding explains 70.0 ms (88 %) of rank 0's 80.0 ms step: the device is idle, and for 50.0 ms "
        f"its host is in {line}."
    )


def test_time_that_the_verdict_holds_to_the_step_without_recording_has_no_second_share():
    report = idle_report(70)
    steps = report.tables["steps"]
    (row,) = steps.to_pylist()
    recorded = {**row, "unattributed_ns": 5 * MS, "capture_ns": 5 * MS, "duration_ns": 85 * MS}
    tables = {**report.tables, "steps": pa.Table.from_pylist([recorded], schema=steps.schema)}
    said = under_bars.not_explained(replace(report, tables=tables))
    assert said is not None
    assert said.startswith("Idle, in no finding: 70.0 ms on rank 0: ")


def uneven(second_ns: int, flops: tuple[int, int] = (10, 10), *notices: Notice) -> Report:
    """Two CPU ranks whose compute is 40 ms and `second_ns`, of so many FLOPs."""
    base = sample_reports.report()
    steps = [
        replace(to_records("steps", base.tables["steps"])[0], step=0, rank=rank, duration_ns=60 * MS,
                compute_ns=compute, exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=60 * MS - compute,
                unattributed_ns=0, capture_ns=0)
        for rank, compute in enumerate((40 * MS, second_ns))
    ]  # fmt: skip
    first = to_records("computes", base.tables["computes"])[0]
    computes = [replace(first, step=0, rank=rank, flops=done) for rank, done in enumerate(flops)]
    return with_tables(replace(base, findings=()), steps=steps, computes=computes, notices=list(notices))


def test_compute_that_differs_at_equal_work_is_explained():
    said = "Equal work, unequal compute: 40.0 ms on rank 0, 20.0 ms on rank 1: "
    report = uneven(20 * MS)
    assert under_bars.uneven_compute(report) == f"{said}other threads or programs use the cores."
    assert said in shown(report, 100)
    assert said in first_screen(report)
    shared = uneven(20 * MS, (10, 10), Notice(0, "cores-shared", "t"))
    assert under_bars.uneven_compute(shared) == f"{said}ranks share cores."
    # Another amount of work explains it, and a rank that is late has a finding.
    assert under_bars.uneven_compute(uneven(20 * MS, (20, 10))) is None
    assert under_bars.uneven_compute(uneven(20 * MS, (0, 0))) is None
    assert under_bars.uneven_compute(uneven(36 * MS)) is None
    late = Finding("straggler", "warning", "t", 20 * MS, None, None, None, 1, (0,), Where())
    assert under_bars.uneven_compute(replace(report, findings=(late,))) is None
    on_gpu = replace(report, run=replace(report.run, device="NVIDIA H100 80GB HBM3"))
    assert under_bars.uneven_compute(on_gpu) is None
