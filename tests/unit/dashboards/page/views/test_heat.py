"""Who was waited for, rank by step, from collectives matched by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtoll.dashboards.facts.waits import by_rank_and_step
from shardtoll.dashboards.page.views import heat
from shardtoll.ledger import Collective, Finding, Report, Run, Step
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import matched
from tests.sample_reports import collective

US = 1_000


def of(*rows: Collective, steps: int = 2, ranks: int = 3, findings: tuple[Finding, ...] = ()) -> Report:
    base = sample_reports.report()
    done = [Step(at, rank, 0, 10, 10, 0, 0, 0, 0) for at in range(steps) for rank in range(ranks)]
    kept = sample_reports.of_ranks(base.tables, range(ranks))
    tables = {**kept, "collectives": to_table("collectives", rows), "steps": to_table("steps", done)}
    run = replace(base.run, world_size=ranks, ranks_seen=tuple(range(ranks)))
    return matched(replace(base, run=run, groups=(), tables=tables, findings=findings))


def joined(
    step: int, seq: int, waits: dict[int, int], transfer: int = 50 * US, hidden: int = 0
) -> list[Collective]:
    """One collective of all ranks: how long each waited, all of it and the transfer exposed but `hidden`."""
    return [
        collective(step, rank, seq, 8, group="world", group_size=len(waits), mesh_dim=None, seq=seq,
                   wait_ns=wait, transfer_ns=transfer, duration_ns=wait + transfer,
                   exposed_ns=max(0, wait + transfer - hidden))
        for rank, wait in waits.items()
    ]  # fmt: skip


def grid(report: Report) -> list[list[float | None]]:
    found = by_rank_and_step(report)
    assert found is not None
    assert found.waits
    return [[None if np.isnan(value) else float(value) for value in row] for row in found.ns]


def test_the_exposed_waiting_goes_to_the_rank_that_came_last():
    rows = joined(0, 0, {0: 300 * US, 1: 0, 2: 100 * US}) + joined(1, 1, {0: 0, 1: 40 * US, 2: 30 * US})
    assert grid(of(*rows)) == [[0, 40 * US], [300 * US, 0], [0, 0]]


def test_a_cell_is_what_the_rank_that_waits_most_waited_in_the_whole_step():
    rows = joined(0, 0, {0: 300 * US, 1: 0, 2: 100 * US}) + joined(0, 1, {0: 50 * US, 1: 0, 2: 270 * US})
    # Rank 0 waits 350 us for rank 1 in the step, rank 2 waits 370 us.
    assert grid(of(*rows))[1] == [370 * US, None]


def test_hidden_waiting_costs_nothing():
    rows = joined(0, 0, {0: 300 * US, 1: 0, 2: 100 * US}, hidden=120 * US)
    assert grid(of(*rows, steps=1)) == [[0], [180 * US], [0]]


def test_nobody_is_late_by_less_than_ten_microseconds():
    assert grid(of(*joined(0, 0, {0: 9 * US, 1: 0, 2: 9 * US}), steps=1)) == [[0], [0], [0]]


def test_a_rank_without_a_matched_collective_is_unknown_and_not_zero():
    rows = joined(0, 0, {0: 30 * US, 1: 0, 2: 20 * US}) + joined(1, 1, {0: 30 * US, 1: 0, 2: 20 * US})[:2]
    report = of(*rows)
    assert grid(report) == [[0, None], [30 * US, None], [0, None]]
    figure = heat.figure(report)
    values, unknown = figure.data
    assert values["z"] == [[0, None], [0.03, None], [0, None]]
    assert unknown["z"] == [[None, 1]] * 3
    assert "3 of 6 cells are not known: no collective of that rank and step is matched." in figure.notes


def test_without_matched_collectives_compute_stands_in_and_is_said_to():
    base = of(steps=0)
    steps = [Step(0, rank, 0, took, took, 0, 0, 0, 0) for rank, took in enumerate((100, 700, 120))]
    assert by_rank_and_step(base) is None
    report = matched(replace(base, tables={**base.tables, "steps": to_table("steps", steps)}))
    found = by_rank_and_step(report)
    assert found is not None
    assert not found.waits
    assert found.ns.tolist() == [[0], [580], [0]]
    assert heat.figure(report).notes[0].startswith("No collective is matched")


def test_many_ranks_and_steps_are_taken_together():
    waits = {rank: (0 if rank == 77 else 20 * US if rank != 3 else 30 * US) for rank in range(100)}
    rows = [row for step in range(400) for row in joined(step, step, waits)]
    figure = heat.figure(of(*rows, steps=400, ranks=100))
    (trace,) = figure.data
    assert (len(trace["z"]), len(trace["x"])) == (64, 134)
    assert (trace["x"][0], trace["x"][-1]) == ("steps 0-2", "step 399")
    assert trace["z"][trace["y"].index("rank 77")] == [0.03] * 134
    assert trace["y"][-1] == "37 others"
    assert any("63 ranks with the most of 100" in note for note in figure.notes)
    assert any("mean over 3 of 400 steps" in note for note in figure.notes)


def test_a_straggler_marks_its_row():
    late = Finding("straggler", "info", "t", 1, None, None, None, 1, (1,))
    everybody = Finding("straggler", "info", "t", 1, None, None, None, 1, (0, 1, 2))
    rows = joined(0, 0, {0: 30 * US, 1: 0, 2: 20 * US}) + joined(1, 1, {0: 30 * US, 1: 0, 2: 20 * US})
    figure = heat.figure(of(*rows, findings=(late, everybody)))
    assert figure.marks == {1: {0: [2, 3]}}


@pytest.mark.parametrize("report", [sample_reports.empty(), of(steps=0)], ids=["empty", "nothing"])
def test_nothing_to_compare_nothing_drawn(report: Report):
    assert isinstance(report.run, Run)
    assert heat.figure(report).empty
    assert heat.numbers(report) == ""


def test_the_table_names_the_worst_step():
    rows = joined(0, 0, {0: 30 * US, 1: 0, 2: 20 * US}) + joined(1, 1, {0: 90 * US, 1: 0, 2: 20 * US})
    text = heat.numbers(of(*rows))
    assert "<td>1</td><td>60.0 µs</td><td>90.0 µs</td><td>1</td><td>2</td>" in text


def test_columns_are_named_by_few_short_numbers():
    waits = [joined(step, step, {0: 5 * US, 1: 0}) for step in range(400)]
    drawn = heat.figure(of(*(row for rows in waits for row in rows), steps=400, ranks=2))
    axis = drawn.layout["xaxis"]
    assert len(axis["tickvals"]) <= heat.TICKS
    assert set(axis["tickvals"]) <= set(drawn.data[0]["x"])
    assert axis["ticktext"][:2] == ["0", "36"]
    assert axis["tickangle"] == 0
