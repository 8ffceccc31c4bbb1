"""Which steps count as surveyed."""

from __future__ import annotations

from shardtoll.ledger import Step
from shardtoll.ledger.records.levels import alike_steps, in_steps, surveyed_steps, watched_steps
from shardtoll.ledger.tables.tables import SCHEMAS, to_table


def table(*levels):
    """One row a (step, rank, level)."""
    rows = [Step(step, rank, 0, 10, 0, 0, 0, 0, 10, level=level) for step, rank, level in levels]
    return to_table("steps", rows)


def test_a_step_is_surveyed_where_all_its_ranks_surveyed_it():
    steps = table((0, 0, "survey"), (0, 1, "survey"), (1, 0, "survey"), (1, 1, "watch"), (2, 0, "watch"))
    assert surveyed_steps(steps) == (0,)


def test_a_rank_that_did_not_finish_a_step_says_nothing_of_it():
    assert surveyed_steps(table((3, 0, "survey"), (2, 1, "survey"))) == (2, 3)


def test_no_steps():
    assert surveyed_steps(SCHEMAS["steps"].empty_table()) == ()


def test_rows_of_some_steps():
    steps = table((0, 0, "survey"), (1, 0, "watch"), (2, 0, "watch"))
    assert in_steps(steps, (0, 2)).column("step").to_pylist() == [0, 2]
    assert in_steps(steps, ()).num_rows == 0


def test_steps_that_ranks_looked_at_in_different_ways_compare_no_waiting():
    both = ((0, 0, "survey"), (0, 1, "survey"), (2, 0, "watch"), (2, 1, "watch"))
    uneven = ((1, 0, "survey"), (1, 1, "watch"))
    assert alike_steps(table(*both, *uneven)) == (0, 2)
    assert watched_steps(table(*both, *uneven)) == (2,)
    assert watched_steps(table(*both[:2], *uneven)) == ()


def test_where_all_steps_are_like_that_they_are_what_there_is():
    uneven = table((1, 0, "survey"), (1, 1, "watch"), (4, 0, "watch"), (4, 1, "survey"))
    assert alike_steps(uneven) == watched_steps(uneven) == (1, 4)
    assert alike_steps(table()) == watched_steps(table()) == ()
