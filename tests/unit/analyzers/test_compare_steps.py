"""Which steps are compared: warm-up, slow starts, and what few surveyed steps cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardtoll.analyzers.compare import Options, compare
from shardtoll.ledger import Report, Step, UsageError
from shardtoll.ledger.comparison import Comparison
from shardtoll.ledger.tables import to_records, to_table
from tests.unit.analyzers.compare_runs import made


def each_step(report: Report, change: Callable[[Step], Step]) -> Report:
    steps = [change(one) for one in to_records("steps", report.tables["steps"])]
    return replace(report, tables={**report.tables, "steps": to_table("steps", steps)})


def stalled(report: Report, *numbers: int, ns: int = 900_000_000) -> Report:
    """The run with these steps idle for that much longer."""

    def longer(one: Step) -> Step:
        more = ns if one.step in numbers else 0
        return replace(one, duration_ns=one.duration_ns + more, idle_ns=one.idle_ns + more)

    return each_step(report, longer)


def scheduled(report: Report, *surveyed: int) -> Report:
    """The run as an ordinary audit records it: operators of these steps only."""
    return each_step(report, lambda one: replace(one, level="survey" if one.step in surveyed else "watch"))


def compared(before: Report, after: Report, **given: int) -> Comparison:
    return compare(before, after, ("a", "b"), Options(**given))  # type: ignore[arg-type]


def test_a_slow_second_step_of_a_short_run_does_not_widen_the_interval():
    runs = [stalled(made(seed, steps=11), 1) for seed in (0, 1)]
    found = compared(*runs)
    assert (found.before.left_out, found.before.slow_start, found.before.timed_steps) == ((0, 1), (1,), 9)
    assert "(step 1 as slow against the rest; --warm-up N says how many)" in found.notes[0]
    assert found.step.least is not None
    assert found.step.before is not None
    assert found.step.least < found.step.before / 4
    # As many as the user says, where they say so.
    asked = compared(*runs, warm_up=1)
    assert (asked.before.left_out, asked.before.slow_start) == ((0,), ())
    assert asked.step.least is not None
    assert asked.step.least > asked.step.before  # type: ignore[operator]


def test_steps_are_left_out_at_the_start_only_and_enough_are_left():
    later = compared(stalled(made(0, steps=20), 9), made(1, steps=20))
    assert later.before.left_out == (0, 1)
    # Nine steps after the first: one more may go, not two.
    short = compared(stalled(made(0, steps=10), 1, 2), made(1, steps=10))
    assert short.before.timed_steps >= 8


def test_a_warm_up_that_leaves_nothing_is_a_mistake():
    with pytest.raises(UsageError, match="--warm-up 99 leaves no step of a run of 14"):
        compared(made(0, steps=14), made(1, steps=14), warm_up=99)
    assert compared(made(0, steps=14), made(1, steps=14), warm_up=13).verdict == "too few steps"


def test_too_few_surveyed_steps_do_not_judge_modules_and_it_is_said():
    runs = [scheduled(made(seed, steps=11), 0, 2) for seed in (0, 1)]
    found = compared(*runs)
    assert {one.time.verdict for one in found.modules} == {"too few steps"}
    (words,) = [note for note in found.notes if note.startswith("times of modules are not judged")]
    assert "1 step before and 1 after were surveyed, 8 of each are needed" in words
    assert 'audit(level="survey"), or survey_every=2 and 18 steps' in words
    every_second = [scheduled(made(seed, steps=18), *range(0, 18, 2)) for seed in (0, 1)]
    enough = compared(*every_second)
    assert {one.time.verdict for one in enough.modules} == {"no change"}
    assert not [note for note in enough.notes if "not judged" in note]
