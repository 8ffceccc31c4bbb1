"""Module and phase in which the late rank of an audit was late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Collective, Compute, Finding, Stall, Step
from shardtoll.ledger.records.stall import BETWEEN_STEPS
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, step

LATE = 1
LATE_NS = 50 * MS
MODULES = (("forward", "a"), ("forward", "b"), ("backward", "b"), ("backward", "a"))
STEPS = range(3)
EVERY = 200 * MS


def job(at: str) -> tuple[list[Step], list[Compute], list[Collective]]:
    """Four operators of 5 ms, 1 ms apart, then an all_reduce of 1 ms; rank 1 is late at `at`.

    `at` is `compute N`, `gap N` (before operator N), `end` (before the all_reduce) or `tail` (behind it,
    so that the all_reduce of the next step waits).
    """
    steps, computes, collectives = [], [], []
    for number in STEPS:
        begins = dict.fromkeys((0, 1), number * EVERY)
        arrived = {}
        for rank in (0, 1):
            late = rank == LATE
            now = begins[rank] + (LATE_NS if late and at == "tail" and number else 0)
            for index, (phase, module) in enumerate(MODULES):
                now += 1 * MS + (LATE_NS if late and at == f"gap {index}" else 0)
                lasts = 5 * MS + (LATE_NS if late and at == f"compute {index}" else 0)
                given = {"index": index, "phase": phase, "module": module, "start_ns": now}
                computes.append(compute(step=number, rank=rank, duration_ns=lasts, **given))
                now += lasts
            arrived[rank] = now + (LATE_NS if late and at == "end" else 0)
        end = max(arrived.values()) + 1 * MS
        for rank in (0, 1):
            length = end - arrived[rank]
            given = {"start_ns": arrived[rank], "issue_ns": arrived[rank], "seq": number + 1}
            given |= {"duration_ns": length, "exposed_ns": length}
            collectives.append(collective(step=number, rank=rank, **given))
            tail = LATE_NS if rank == LATE and at == "tail" else 0
            began = begins[rank] + (LATE_NS if rank == LATE and at == "tail" and number else 0)
            total = end + tail - began
            computed = sum(row.duration_ns or 0 for row in computes if (row.step, row.rank) == (number, rank))
            parts = {"compute_ns": computed, "exposed_comm_ns": length, "idle_ns": total - computed - length}
            steps.append(step(number, rank, start_ns=began, duration_ns=total, **parts))
    return steps, computes, collectives


def straggler(at: str, **given: Any) -> Finding:
    steps, computes, collectives = job(at)
    report = run(ledger(collectives, steps=steps, computes=computes, **given))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    return finding


@pytest.mark.parametrize(("number", "phase", "module"), [(0, "forward", "a"), (2, "backward", "b")])
def test_a_rank_that_computes_longer_is_late_in_that_module(number: int, phase: str, module: str) -> None:
    finding = straggler(f"compute {number}")
    assert finding.ranks == (LATE,)
    assert finding.toll_ns == LATE_NS
    assert (finding.where.phase, finding.where.module) == (phase, module)
    assert f"50.0 ms longer computing than the other rank, most in {phase} of {module}" in finding.title


@pytest.mark.parametrize(
    ("number", "phase", "sides"),
    [
        (0, "forward", "between the step's beginning and aten.mm.default of a"),
        (1, "forward", "between aten.mm.default of a and aten.mm.default of b"),
        (3, "backward", "between aten.mm.default of b and aten.mm.default of a"),
    ],
)
def test_a_rank_that_sleeps_is_late_between_two_operators(number: int, phase: str, sides: str) -> None:
    finding = straggler(f"gap {number}")
    assert (finding.where.phase, finding.where.op) == (phase, sides)
    assert "outside operators" in finding.title
    assert sides in finding.title


@pytest.mark.parametrize(
    ("number", "clause"),
    [
        (1, "most in forward, between aten.mm.default of a and aten.mm.default of b, before t.py:1 (b)"),
        (2, "most between forward and backward, after t.py:1 (b) and before its backward"),
        (3, "most in backward, between aten.mm.default of b and aten.mm.default of a, before the backward of "
         "t.py:0 (a)"),
    ],
)  # fmt: skip
def test_the_lines_next_to_a_gap_are_named(number: int, clause: str) -> None:
    # Operators of a backward have the line of their forward.
    lines = [f"t.py:{index} ({'ab'[index]})" for index in (0, 1, 1, 0)]
    steps, computes, collectives = job(f"gap {number}")
    computes = [replace(row, source=lines[row.index]) for row in computes]
    report = run(ledger(collectives, steps=steps, computes=computes))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    assert clause in finding.title
    lines = clause[clause.index("after" if number == 2 else "before t.py" if number == 1 else "before the") :]
    assert finding.remedy is not None
    assert finding.remedy.text.startswith(f"Look at the code {lines}: only rank {LATE} sleeps")
    figures = {each.label: each.value for each in finding.evidence}
    whole = next(value for label, value in figures.items() if label.startswith("more time outside operators"))
    assert figures["longest of it in one place, per step"] <= whole


def test_a_gap_between_phases_names_the_work_on_both_sides() -> None:
    steps, computes, collectives = job("gap 2")
    computes = [replace(row, source=f"t.py:{row.index}") for row in computes]
    report = run(ledger(collectives, steps=steps, computes=computes))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    assert "between forward and backward, after t.py:1 and before the backward of t.py:2" in finding.title
    # Without a line before it, the one after it is named.
    bare = [replace(row, source=None if row.index == 1 else row.source) for row in computes]
    report = run(ledger(collectives, steps=steps, computes=bare))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    assert "between forward and backward, before the backward of t.py:2" in finding.title


def test_a_rank_late_after_its_operators_is_late_before_the_collective() -> None:
    finding = straggler("end")
    assert finding.where.op == "between aten.mm.default of a and all_reduce"


def test_a_rank_late_behind_its_last_collective_is_late_in_the_optimizer() -> None:
    finding = straggler("tail")
    assert finding.where.op == "between all_reduce and the step's end"
    assert finding.where.phase == "optimizer"


def test_a_rank_late_in_another_place_each_time_has_no_place() -> None:
    steps, computes, collectives = [], [], []
    for number, at in enumerate(("gap 0", "gap 1", "gap 3")):
        for made, kept in zip(job(at), (steps, computes, collectives), strict=True):
            kept.extend(row for row in made if row.step == number)  # type: ignore[attr-defined]
    report = run(ledger(collectives, steps=steps, computes=computes))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    assert finding.where.module is None
    assert "outside operators" in finding.title


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("data", "DataLoader.__next__", "idle while its batch is fetched"),
        ("host", BETWEEN_STEPS, "between its steps"),
    ],
)
def test_a_rank_late_before_its_step_is_told_why(kind: str, name: str, words: str) -> None:
    steps, computes, collectives = job("none")
    rows = []
    for row in collectives:
        # Rank 0 has come to each all_reduce 50 ms before.
        early = LATE_NS if row.rank != LATE else 0
        given = {"start_ns": (row.start_ns or 0) - early, "duration_ns": (row.duration_ns or 0) + early}
        given |= {"exposed_ns": given["duration_ns"], "issue_ns": given["start_ns"], "seq": row.seq}
        rows.append(collective(step=row.step, rank=row.rank, **given))
    stalls = [Stall(number, LATE, kind, name, "other", 1, LATE_NS, 0, before_ns=LATE_NS) for number in STEPS]
    report = run(ledger(rows, steps=steps, computes=computes, stalls=stalls))
    (finding,) = (f for f in report.findings if f.kind == "straggler")
    assert f"50.0 ms longer {words} than the other rank" in finding.title
