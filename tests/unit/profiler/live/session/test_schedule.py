"""Which steps are surveyed, and how seldom, whatever the sequences of a program are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardtoll.profiler.live.session.schedule import Schedule, SurveyCost

MS = 1_000_000


def played(
    schedule: Schedule,
    steps: int,
    sequence_of: Callable[[int], object],
    took_ms: Callable[[int, bool], float] | None = None,
) -> list[int]:
    """Run steps whose sequences Python sees whole; return those surveyed. Watching teaches nothing here.

    `took_ms`: how long a step takes, by its number and whether it is surveyed.
    """
    surveyed: list[int] = []
    known: set[object] = set()
    now = 0.0
    for step in range(steps):
        sequence = sequence_of(step)
        wants = schedule.wants_survey(step)
        if took_ms is not None:
            schedule.begins(step, surveyed=wants, now_ns=round(now * MS))
            now += took_ms(step, wants)
        if wants:
            surveyed.append(step)
            schedule.surveyed(new=sequence not in known, all_seen=True)
            known.add(sequence)
        else:
            schedule.watched(step, repeats=sequence in known)
    return surveyed


@pytest.mark.parametrize(
    ("every", "expected"), [(100, [0, 2, 102, 202]), (7, [0, *range(2, 250, 7)]), (1, [0, *range(2, 250)])]
)
def test_steps_0_and_2_and_then_one_in_so_many(every: int, expected: list[int]) -> None:
    assert played(Schedule("schedule", every), 250, lambda _: "A") == expected


def test_the_other_levels_do_one_thing_to_every_step() -> None:
    assert played(Schedule("survey"), 9, lambda _: "A") == list(range(9))
    assert played(Schedule("watch"), 9, lambda step: step) == []
    assert [Schedule(level).watches for level in ("survey", "watch", "schedule")] == [False, True, True]


def test_warm_up_goes_on_until_two_sequences_with_collectives_of_cpp_agree() -> None:
    schedule = Schedule("schedule")
    seen: list[int] = []
    for step in range(12):
        if schedule.wants_survey(step):
            seen.append(step)
            # As DDP does it: the buckets of step 1 are not those of step 0.
            schedule.surveyed(new=step < 2, all_seen=False)
        else:
            schedule.watched(step, repeats=True)
    assert seen == [0, 1, 2]


def test_warm_up_ends_where_no_two_agree() -> None:
    schedule = Schedule("schedule")
    seen = []
    for step in range(50):
        if schedule.wants_survey(step):
            seen.append(step)
            schedule.surveyed(new=True, all_seen=False)
        else:
            schedule.watched(step, repeats=True)
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_sequence_that_changes_for_good_is_surveyed_in_the_next_step() -> None:
    assert played(Schedule("schedule"), 90, lambda step: step >= 50) == [0, 2, 51]


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 10, 20])
def test_a_step_that_differs_now_and_then_is_surveyed_where_it_comes_back(period: int) -> None:
    def sequence_of(step: int) -> str:
        return "B" if step % period == period - 1 else "A"

    surveyed = played(Schedule("schedule"), 12 * period, sequence_of)
    assert "B" in {sequence_of(step) for step in surveyed}
    assert len(surveyed) <= 7, surveyed


def test_sequences_that_never_come_back_are_surveyed_less_and_less_often() -> None:
    steps = 1600
    surveyed = played(Schedule("schedule", 10_000), steps, lambda step: step)
    # Each time it waits twice as long as before, then surveys the next step and the one foretold.
    assert len(surveyed) <= 2 * steps.bit_length() + 2, surveyed
    later = played(Schedule("schedule", 100), 5000, lambda step: step)
    assert len(later) <= 2 * 7 + 2 + 3 * 50, "at most two more for each of the schedule's own"


def test_sequences_that_change_in_every_step_are_soon_hardly_surveyed() -> None:
    # As in ring attention over sequences of uneven length: no step is ever like one before.
    surveyed = played(Schedule("schedule"), 100, lambda step: step)
    assert len([step for step in surveyed if step < 10]) <= 5, surveyed
    assert len([step for step in surveyed if step >= 10]) <= 2, surveyed


@pytest.mark.parametrize("sequences", [3, 50, 1000])
def test_what_is_surveyed_beyond_the_due_steps_is_a_few_and_one_in_twenty(sequences: int) -> None:
    schedule, steps = Schedule("schedule", 10_000), 2000
    surveyed = 0
    known: set[int] = set()
    for step in range(steps):
        # A sequence that comes and goes without order, a part of which C++ issues.
        sequence = step * step * 7919 % 104_729 % sequences
        if schedule.wants_survey(step):
            surveyed += 1
            schedule.surveyed(new=sequence not in known, all_seen=False)
            known.add(sequence)
        else:
            schedule.watched(step, repeats=sequence in known)
    assert surveyed <= 2 + 8 + steps // 20


def timed(schedule: Schedule, steps: int, surveyed_ms: float, watched_ms: float = 10.0) -> list[int]:
    """Run steps of these times that repeat one sequence; return those surveyed."""

    def took_ms(step: int, surveyed: bool) -> float:
        # The first step sets things up, and a checkpoint is written in some, surveyed or not.
        return 500 if step == 0 or step % 150 == 102 else surveyed_ms if surveyed else watched_ms

    return played(schedule, steps, lambda _: "A", took_ms)


@pytest.mark.parametrize(
    ("surveyed_ms", "expected"),
    [
        (19, [0, 2, 102, 202, 302, 402, 502, 602, 702, 802, 902]),
        (21, [0, 2, 402, 802]),
        (49, [0, 2, 402, 802]),
        (60, [0, 2]),
    ],
)
def test_surveys_add_at_most_a_hundredth(surveyed_ms: float, expected: list[int]) -> None:
    assert timed(Schedule("schedule"), 1000, surveyed_ms) == expected


def test_a_spacing_of_the_users_own_is_kept() -> None:
    assert timed(Schedule("schedule", 50), 200, 1000) == [0, 2, 52, 102, 152]


def test_ranks_that_measure_otherwise_survey_the_same_steps_where_all_do() -> None:
    """Whoever surveys less often surveys no step that the others do not."""
    often, seldom = SurveyCost(), SurveyCost()
    for cost, took in ((often, 19), (seldom, 200)):
        now = 0
        for step in range(12):
            cost.begins(step, surveyed=step == 2, now_ns=now)
            now += (took if step == 2 else 10) * MS
    assert often.spacing(100) == 100
    assert seldom.spacing(100) == 6400
    assert seldom.spacing(100) % often.spacing(100) == 0


def test_steps_that_do_not_follow_one_another_tell_no_time() -> None:
    cost = SurveyCost()
    for step, now in ((1, 0), (3, 10), (4, 20), (7, 900)):
        cost.begins(step, surveyed=False, now_ns=now * MS)
    assert list(cost._watched) == [10 * MS]


@pytest.mark.parametrize("period", [1, 7, 500])
def test_which_steps_are_surveyed_beside_those_due_is_the_same_on_all_ranks(period: int) -> None:
    """Ranks measure their own times; whoever surveys less often surveys no step that others do not."""

    def surveyed(surveyed_ms: float) -> set[int]:
        return set(
            played(
                Schedule("schedule"),
                6000,
                lambda step: "B" if step % period == period - 1 else "A",
                lambda _, wants: surveyed_ms if wants else 10,
            )
        )

    often, seldom = surveyed(15), surveyed(150)
    assert seldom <= often
    assert len(seldom) < len(often) / 4
