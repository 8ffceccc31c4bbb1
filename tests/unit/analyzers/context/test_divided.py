"""Watched steps divided as surveyed ones are, of ledgers whose true parts are known."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.context.divided import MOST_SCALE
from shardtoll.ledger import Stall, Step
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.of_kinds import running

run = running()

COMPUTE, SLEEP, PYTHON, COMM = 40 * MS, 20 * MS, 10 * MS, 30 * MS
"""A step without a survey: 100 ms."""


def surveyed(number, *, booked=50 * MS, slowed=(4 * MS, 36 * MS), estimated=(4 * MS, 36 * MS), **given):
    """A surveyed step: `slowed` is what surveying adds unseen, `estimated` what it is taken for.

    Both to operators and to the time between them.
    """
    capture = booked + sum(estimated)
    values = {
        "compute_ns": COMPUTE + slowed[0] - estimated[0],
        "idle_ns": SLEEP + PYTHON + slowed[1] - estimated[1],
        "exposed_comm_ns": COMM,
        "unattributed_ns": capture,
        "capture_ns": capture,
        "duration_ns": 100 * MS + booked + sum(slowed),
        "asleep_ns": SLEEP + COMM,
        "slowed_compute_ns": estimated[0],
        "slowed_idle_ns": estimated[1],
    }
    return step(number, **(values | given))


def watched(number, *, sleep=SLEEP, work=COMPUTE + PYTHON, comm=COMM, **given):
    own = sleep + work
    values = {
        "compute_ns": 0,
        "idle_ns": 0,
        "exposed_comm_ns": comm,
        "unattributed_ns": own,
        "duration_ns": own + comm,
        "asleep_ns": sleep + comm,
        "level": "watch",
    }
    return step(number, **(values | given))


def steps_of(*rows: Step, **given):
    report = run(ledger(run=given.pop("run", run_of(1)), steps=rows, **given))
    return [Step(**row) for row in report.tables["steps"].to_pylist()]


def test_a_watched_step_has_the_parts_of_the_step_without_a_survey():
    rows = steps_of(surveyed(0), watched(1), surveyed(2), *(watched(number) for number in range(3, 9)))
    for row in rows:
        assert sum(row.parts_ns) == row.duration_ns
        assert (row.compute_ns, row.idle_ns) == (pytest.approx(COMPUTE), pytest.approx(SLEEP + PYTHON))
        assert row.exposed_comm_ns == COMM
    assert [row.parts_error_ns is None for row in rows] == [row.level == "survey" for row in rows]
    assert rows[0].capture_ns == 90 * MS, "the whole difference"


@pytest.mark.parametrize("off", [0.6, 0.8, 1.4, 1.9])
def test_what_a_survey_costs_is_what_watched_steps_do_not_take(off):
    said = (round(4 * MS / off), round(36 * MS / off))
    rows = steps_of(surveyed(0, estimated=said), *(watched(number) for number in range(1, 9)))
    for row in rows:
        assert row.compute_ns == pytest.approx(COMPUTE, rel=0.001)
        assert row.idle_ns == pytest.approx(SLEEP + PYTHON, rel=0.001)
        assert sum(row.parts_ns) == row.duration_ns
    assert rows[0].capture_ns == pytest.approx(90 * MS, rel=0.001)


def test_beyond_its_bound_a_difference_is_one_of_the_steps_themselves():
    rows = steps_of(surveyed(0, estimated=(0, MS)), *(watched(number) for number in range(1, 9)))
    assert rows[0].slowed_idle_ns == MOST_SCALE * MS
    assert (rows[1].parts_error_ns or 0) > MS
    assert sum(rows[1].parts_ns) == rows[1].duration_ns


@pytest.mark.parametrize("sleep", [0, SLEEP, 3 * SLEEP])
@pytest.mark.parametrize("work", [COMPUTE + PYTHON, 2 * (COMPUTE + PYTHON)])
def test_steps_that_sleep_or_work_more_are_idle_or_compute_for_longer(sleep, work):
    rows = steps_of(
        surveyed(0), surveyed(2), *(watched(number, sleep=sleep, work=work) for number in range(3, 9))
    )
    for row in rows[2:]:
        assert row.compute_ns == pytest.approx(work * COMPUTE / (COMPUTE + PYTHON), rel=0.001)
        assert row.idle_ns == pytest.approx(sleep + work * PYTHON / (COMPUTE + PYTHON), rel=0.001, abs=10)
        assert sum(row.parts_ns) == row.duration_ns


def test_without_time_asleep_steps_divide_as_a_whole():
    rows = steps_of(
        surveyed(0, asleep_ns=None), *(watched(number, work=120 * MS, asleep_ns=None) for number in (1, 2, 3))
    )
    whole = COMPUTE + SLEEP + PYTHON
    assert rows[1].compute_ns / rows[1].idle_ns == pytest.approx(COMPUTE / (whole - COMPUTE), rel=0.2)
    assert sum(rows[1].parts_ns) == rows[1].duration_ns


def test_steps_whose_time_was_all_the_surveys_tell_nothing_of_others():
    """Scaled by other steps' cost, nothing is left of a short one."""
    given = {"slowed_compute_ns": 20 * MS, "slowed_idle_ns": 0, "idle_ns": 0, "asleep_ns": COMM}
    given |= {"capture_ns": 20 * MS, "unattributed_ns": 20 * MS}
    long = {"compute_ns": 60 * MS, "duration_ns": 110 * MS} | given
    rows = steps_of(
        *(surveyed(number, **long) for number in (0, 1, 5)),
        surveyed(2, compute_ns=5 * MS, duration_ns=55 * MS, **given),
        watched(3, sleep=0, work=50 * MS),
        watched(4, sleep=0, work=MS),
        collectives=[collective(step=number, group_size=1, exposed_ns=0) for number in (0, 1, 3, 5)],
    )
    (short,) = (row for row in rows if row.step == 4)
    assert (short.compute_ns, short.idle_ns, short.unattributed_ns) == (0, 0, MS)
    assert short.parts_error_ns is None


def test_the_first_step_speaks_for_others_only_where_it_is_alone():
    setting_up = surveyed(0, compute_ns=COMPUTE + 400 * MS, duration_ns=590 * MS)
    rows = steps_of(setting_up, surveyed(2), *(watched(number) for number in range(3, 9)))
    assert rows[2].compute_ns == pytest.approx(COMPUTE)
    assert rows[0].compute_ns == pytest.approx(COMPUTE + 400 * MS), "its own time is none of the survey's"


def test_steps_divide_as_surveyed_ones_with_the_same_collectives():
    """Every other step only computes, and issues nothing."""
    calls = [collective(step=number, group_size=1, exposed_ns=0) for number in (0, 3, 5, 7)]
    rows = steps_of(
        surveyed(0, exposed_comm_ns=0, duration_ns=160 * MS, asleep_ns=SLEEP),
        surveyed(2, idle_ns=0, compute_ns=COMPUTE, exposed_comm_ns=0, duration_ns=130 * MS, asleep_ns=0),
        *(watched(number, comm=0) for number in (3, 5, 7)),
        *(watched(number, comm=0, sleep=0, work=COMPUTE) for number in (4, 6, 8)),
        collectives=calls,
    )
    for row in rows[2:]:
        assert row.compute_ns == pytest.approx(COMPUTE, rel=0.001)


def test_what_nothing_divides_stays_as_it_is():
    bare = [watched(number) for number in range(3)]
    assert [row.parts_ns for row in steps_of(*bare)] == [row.parts_ns for row in bare], "none was surveyed"
    blind = [replace_level(surveyed(0)), watched(1)]
    assert [row.parts_error_ns for row in steps_of(*blind)] == [None, None]
    unknown = [collective(step=1, group_size=1, exposed_ns=None)]
    untold = watched(1, comm=0, work=COMPUTE + PYTHON + COMM, asleep_ns=SLEEP)
    assert steps_of(surveyed(0), untold, collectives=unknown)[1].compute_ns == 0, "its waits are unknown"


def replace_level(row: Step) -> Step:
    """The step as an accelerator without a trace has it: only its time is known."""
    return step(row.step, compute_ns=0, idle_ns=0, exposed_comm_ns=COMM, unattributed_ns=70 * MS)


def test_a_device_computes_as_in_a_traced_step_and_is_idle_for_the_rest():
    traced = step(0, compute_ns=COMPUTE, exposed_comm_ns=COMM, idle_ns=90 * MS, duration_ns=160 * MS)
    row = steps_of(traced, watched(1, asleep_ns=None), run=run_of(1, device="NVIDIA H100"))[1]
    assert (row.compute_ns, row.idle_ns, row.exposed_comm_ns) == (COMPUTE, SLEEP + PYTHON, COMM)


def test_a_trace_stays_as_it_is():
    rows = [surveyed(0), watched(1)]
    assert [row.compute_ns for row in steps_of(*rows, run=run_of(1, source="trace"))] == [COMPUTE, 0]


def test_a_device_is_idle_for_the_survey_by_what_watched_steps_do_not_take():
    slow = {"duration_ns": 300 * MS, "compute_ns": 40 * MS, "idle_ns": 250 * MS, "exposed_comm_ns": 10 * MS}
    traced = step(0, unattributed_ns=0, **slow)
    plain = watched(1, sleep=0, work=90 * MS, comm=10 * MS, asleep_ns=None)
    host = Stall(0, 0, "launch", "", "forward", 50, 240 * MS, 240 * MS)
    rows = steps_of(traced, plain, run=run_of(1, device="NVIDIA H200"), stalls=[host])
    assert (rows[0].idle_ns, rows[0].capture_ns, rows[0].compute_ns) == (50 * MS, 200 * MS, 40 * MS)
    assert (rows[1].idle_ns, rows[1].compute_ns) == (50 * MS, 40 * MS)
    assert [sum(row.parts_ns) - row.duration_ns for row in rows] == [0, 0]


def test_a_device_that_was_only_surveyed_keeps_its_idle_time():
    slow = {"duration_ns": 300 * MS, "compute_ns": 40 * MS, "idle_ns": 260 * MS, "exposed_comm_ns": 0}
    (row,) = steps_of(step(0, unattributed_ns=0, **slow), run=run_of(1, device="NVIDIA H200"))
    assert (row.idle_ns, row.capture_ns) == (260 * MS, 0)
