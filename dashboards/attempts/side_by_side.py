"""Several reports of the same task next to each other: what each got right, and what it paid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts import summary
from shardtoll.dashboards.facts.first_screen.first_rows import noise
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import Finding, Report, Step
from shardtoll.ledger.records.levels import (
    exposure_doubted,
    exposure_told,
    in_steps,
    surveyed_steps,
    timed_steps,
)
from shardtoll.ledger.records.work import kind_of_work, matmuls, total_flops
from shardtoll.ledger.tables.tables import to_records
from shardtoll.ledger.words import human

FINDINGS_SHOWN: Final = 4
_MOST_TITLE: Final = 240


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of the reports compared."""

    name: str
    lesson: str
    """The lesson for the reader, one sentence."""
    report: Report
    link: str | None = None
    """Path of its own page, relative to the comparison's."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison: a label and a cell an attempt."""

    label: str
    cells: tuple[str, ...]


def gradient_verdict(report: Report) -> str:
    """Return whether the gradients were right; `not checked` if nobody looked."""
    wrong = [finding for finding in report.findings if finding.kind == "wrong-gradient"]
    if wrong:
        return f"WRONG: {clip(wrong[0].title, _MOST_TITLE)}"
    checked = any(notice.kind == "gradients-checked" for notice in report.notices)
    return "right" if checked else "not checked"


def _per_step_and_rank(report: Report, column: str | None, *, implicit_only: bool = False) -> float | None:
    """Return the mean over steps of a column's sum (None: of the count) on the rank where it is largest."""
    table = report.tables["collectives"]
    table = table.filter(pc.is_valid(table.column("step")))
    if implicit_only:
        table = table.filter(pc.fill_null(table.column("implicit"), False))
    steps = summary.step_count(report)
    if not steps:
        return None
    aggregation = ([], "count_all") if column is None else (column, "sum")
    sums = table.group_by("rank").aggregate([aggregation])
    values = sums.column("count_all" if column is None else f"{column}_sum").to_pylist()
    of_ranks = [value for value in values if value is not None]
    return max(of_ranks, default=0) / steps


def _repeated(report: Report) -> list[Finding]:
    """Return work that is computed more than once, norms and updates that replicas repeat by choice left
    out."""
    return [
        finding
        for finding in report.findings
        if finding.kind == "duplicated-compute"
        and finding.where.phase != "optimizer"
        and kind_of_work(finding.where.op or "") == "matmul"
    ]


def _flops(report: Report) -> str:
    computes = report.tables["computes"]
    computes = matmuls(in_steps(computes, surveyed_steps(report.tables["steps"])))
    steps = summary.surveyed_count(report)
    if not steps or not computes.num_rows:
        return human.UNKNOWN
    done = total_flops(computes) / steps
    spare = sum(int(finding.figure("flops_too_many") or 0) for finding in _repeated(report))
    needed = done - spare
    if not spare or needed <= 0:
        return f"{human.work(done)}, all needed"
    return f"{human.work(done)}, {human.work(needed)} needed ({done / needed:.3g}x)"


def _worst(report: Report, rows: pa.Table, time_of: Callable[[Step], int]) -> float | None:
    """Return a time's mean over these rows, of watched steps if there are any, where it is most."""
    table = report.tables["steps"]
    timed = set(timed_steps(table))
    of_rank: dict[int, list[int]] = {}
    for step in (row for row in to_records("steps", rows) if row.step in timed):
        of_rank.setdefault(step.rank, []).append(time_of(step))
    means = [sum(times) / len(times) for times in of_rank.values()]
    return max(means) if means else None


def _time(time_ns: float | None) -> str:
    return human.UNKNOWN if time_ns is None else human.duration(time_ns)


def _exposed(report: Report) -> float | None:
    """Return it over the steps in which it is known. None if a rank has no such step or only a lower
    bound."""
    steps, rows_told = report.tables["steps"], exposure_told(report.tables)
    doubted = exposure_doubted(report.tables)
    if len(rows_told.column("rank").unique()) < len(steps.column("rank").unique()) or any(
        doubted.column("exposed_comm_ns").to_pylist()
    ):
        return None
    return _worst(report, rows_told, lambda step: step.exposed_comm_ns)


def _step(report: Report) -> float | None:
    return _worst(report, report.tables["steps"], lambda step: step.duration_ns - step.capture_ns)


def _toll(report: Report) -> float | None:
    exposed, twice = _exposed(report), _duplicated(report)
    return None if exposed is None or twice is None else exposed + twice


def _floor(report: Report) -> float | None:
    table = report.tables["collectives"]
    floors = table.filter(pc.is_valid(table.column("step"))).column("floor_ns")
    return None if floors.null_count else _per_step_and_rank(report, "floor_ns")


def _collectives(report: Report) -> str:
    count = _per_step_and_rank(report, None)
    hidden = _per_step_and_rank(report, None, implicit_only=True)
    if count is None or hidden is None:
        return human.UNKNOWN
    return f"{count:.3g}" + (f", {hidden:.3g} of them implicit" if hidden else "")


def _duplicated(report: Report) -> int | None:
    """Return the cost of computing more than once; None if operators have no durations."""
    tolls = [finding.toll_ns for finding in _repeated(report)]
    priced = [toll for toll in tolls if toll is not None]
    return sum(priced) if len(priced) == len(tolls) else None


def rows(attempts: Sequence[Attempt]) -> list[Row]:
    """Return the comparison's lines; figures are per step, each on the rank where it is largest."""
    questions = (
        ("gradient", gradient_verdict),
        ("matmul FLOPs, all ranks", _flops),
        ("matmuls done twice", lambda report: _time(_duplicated(report)) if _repeated(report) else "none"),
        ("collectives", _collectives),
        ("message bytes", lambda report: human.size(_per_step_and_rank(report, "message_bytes"))),
        ("exposed communication", lambda report: _time(_exposed(report))),
        ("toll: exposed, and matmuls done twice", lambda report: _time(_toll(report))),
        ("floor of the collectives", lambda report: _time(_floor(report))),
        ("step, capture left out", lambda report: _time(_step(report))),
    )
    return [Row(label, tuple(ask(attempt.report) for attempt in attempts)) for label, ask in questions]


def bill_lines(attempt: Attempt) -> list[str]:
    """Return the top of an attempt's bill, one line per finding: kind, toll and place.

    Noise has no line, as on the first screen; it is counted with those that have no room.
    """
    is_noise = noise(attempt.report)
    findings = [
        (number, finding)
        for number, finding in enumerate(attempt.report.findings, start=1)
        if not is_noise(finding)
    ][:FINDINGS_SHOWN]
    lines = []
    for number, finding in findings:
        # An error has no price to show.
        toll = "" if finding.toll_ns is None else f", {human.duration(finding.toll_ns)} per step"
        lines.append(f"{number}. {finding.kind}{toll}: {clip(finding.where.label(), 80)}")
    left_out = len(attempt.report.findings) - len(findings)
    if left_out:
        lines.append(f"and {left_out} more on its own page")
    return lines or ["nothing found"]
