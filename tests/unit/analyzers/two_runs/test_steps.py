"""Which steps are compared: warm-up, slow starts, and what few surveyed steps cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardtoll.analyzers.compare.compare import Options, compare
from shardtoll.analyzers.compare.compare_ranks import rank_series
from shardtoll.dashboards.compare.compare_page import anatomy
from shardtoll.ledger import Report, Step, UsageError
from shardtoll.ledger.answers.comparison import Comparison
from shardtoll.ledger.tables.tables import to_records, to_table
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


def blinded(report: Report, *numbers: int, rank: int = 0, kept_ns: int = 0) -> Report:
    """The run where nothing, or `kept_ns` only, told a rank's exposed communication in these steps."""

    def less(one: Step) -> Step:
        if one.step not in numbers or one.rank != rank:
            return one
        more = one.unattributed_ns + one.exposed_comm_ns - kept_ns
        return replace(one, exposed_comm_ns=kept_ns, unattributed_ns=more)

    rows = [
        replace(one, exposed_ns=None) if one.step in numbers and one.rank == rank else one
        for one in to_records("collectives", report.tables["collectives"])
    ]
    made = each_step(report, less)
    return replace(made, tables={**made.tables, "collectives": to_table("collectives", rows)})


def test_untold_exposed_communication_is_no_zero_and_the_parts_still_add_up():
    told, other = (made(seed, steps=20, level="watch") for seed in (0, 1))
    whole = compared(told, other)
    assert [one.name for one in whole.parts] == ["moving", "waiting", "computing and all else"]
    for runs in ((blinded(told, 12), other), (told, blinded(other, 12))):
        found = compared(*runs)
        parts = {one.name: one for one in found.parts}
        assert set(parts) == {"moving", "waiting", "exposed communication and all else"}
        for name in ("moving", "waiting"):
            assert (parts[name].before, parts[name].after, parts[name].verdict) == (None, None, "unknown")
        rest = parts["exposed communication and all else"]
        assert (rest.before, rest.after) == pytest.approx((found.step.before, found.step.after))
        assert [len(trace["x"]) for trace in anatomy(found).data] == [2], "the bar holds what is known"
        (said,) = [note for note in found.notes if "nothing tells how long" in note]
        assert "in 1 step of 18" in said
        assert (found.step.before, found.step.after) == (whole.step.before, whole.step.after)


def test_what_only_a_survey_tells_is_no_zero_of_watched_steps():
    surveyed, watched = made(0, steps=20), made(1, steps=20, level="watch")
    for silent in (False, True):
        light = blinded(watched, 12) if silent else watched
        rest = "exposed communication and all else" if silent else "computing and all else"
        for runs in ((surveyed, light), (light, surveyed)):
            found = compared(*runs)
            parts = {one.name: one for one in found.parts}
            assert set(parts) == {"moving", "waiting", rest}
            assert (parts["moving"].before is None) is silent
            for side in ("before", "after"):
                whole = sum(getattr(one, side) or 0 for one in found.parts)
                assert whole == pytest.approx(getattr(found.step, side))
            assert all(rest in note for note in found.notes if "moving and waiting" in note)
    few, many = made(0, steps=20), made(1, steps=20, level="watch", ranks=4)
    scaled = compared(few, many).scaling
    assert scaled is not None
    assert scaled.losses == ()


def test_lower_bounds_of_exposed_communication_are_no_change_of_the_program():
    told, other = (made(seed, steps=20, level="watch") for seed in (0, 1))
    whole = compared(told, other)
    assert whole.verdict == "no change"
    silent = blinded(blinded(other, *range(20), kept_ns=1000), *range(20), rank=1, kept_ns=1000)
    for runs in ((told, silent), (silent, told), (silent, silent)):
        found = compared(*runs)
        assert (found.verdict, found.causes) == ("no change", ())
        parts = {one.name: (one.before, one.after) for one in found.parts}
        assert (parts["moving"], parts["waiting"]) == ((None, None), (None, None))
        assert parts["exposed communication and all else"] == pytest.approx(
            (found.step.before, found.step.after)
        )
    (said,) = [
        note
        for note in compared(told, blinded(other, 12, 13, kept_ns=1000)).notes
        if note.startswith("after: of some collectives")
    ]
    assert "2 steps exposed time is not known. The record holds a lower bound" in said


def test_a_rank_that_does_not_tell_its_exposed_time_is_not_named_for_it():
    told, other = (made(seed, steps=20, level="watch", ranks=4) for seed in (0, 1))
    assert rank_series(told, tuple(range(2, 20))).keys() == {0, 1, 2, 3}
    silent = blinded(other, *range(20), rank=2)
    assert rank_series(silent, tuple(range(2, 20))).keys() == {0, 1, 3}
    assert compared(told, silent).ranks == ()


def test_the_loss_of_scaling_is_not_divided_by_what_is_unknown():
    few, many = made(0, steps=20, level="watch", ranks=2), made(1, steps=20, level="watch", ranks=4)
    whole = compared(few, many).scaling
    assert whole is not None
    assert whole.losses
    for kept_ns in (0, 1000):
        blind = compared(few, blinded(many, 12, kept_ns=kept_ns)).scaling
        assert blind is not None
        assert (blind.losses, blind.efficiency) == ((), whole.efficiency)
