"""Which steps count as surveyed."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger import Count, Step
from shardtoll.ledger.records.levels import (
    alike_steps,
    exposure_doubted,
    exposure_told,
    in_steps,
    surveyed_steps,
    watched_steps,
)
from shardtoll.ledger.tables.tables import SCHEMAS, to_records, to_table
from tests.unit.analyzers.ledgers import collective

WATCHED = Step(0, 0, 0, 10, 0, 0, 0, 0, 10, level="watch")


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


def told(steps, collectives=(), counts=(), ask=exposure_told):
    tables = {
        "steps": to_table("steps", steps),
        "collectives": to_table("collectives", collectives),
        "counts": to_table("counts", counts),
    }
    rows = ask(tables)
    assert rows.schema == tables["steps"].schema
    return sorted((row.step, row.rank) for row in to_records("steps", rows))


def test_a_zero_beside_an_unknown_time_is_none():
    steps = [replace(WATCHED, step=number, rank=rank) for number in (0, 1) for rank in (0, 1)]
    unknown = collective(step=1, rank=0, exposed_ns=None)
    assert told(steps, [unknown, collective(step=0, rank=0, exposed_ns=0)]) == [(0, 0), (0, 1), (1, 1)]
    assert told(steps, [replace(unknown, step=None)]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_zero_where_collectives_were_counted_only_is_none():
    steps = [replace(WATCHED, step=number) for number in range(4)]
    issued = (Count(0, 0, "pg", 3, 3), Count(1, 0, "pg", 3, 2), Count(2, 0, "pg", None, 2))
    assert told(steps, counts=issued) == [(0, 0), (2, 0), (3, 0)]


def test_what_is_more_than_zero_or_surveyed_is_told():
    some = replace(WATCHED, exposed_comm_ns=4, unattributed_ns=6)
    surveyed = replace(WATCHED, step=1, level="survey")
    unknown = [collective(step=number, rank=0, exposed_ns=None) for number in (0, 1)]
    assert told([some, surveyed], unknown) == [(0, 0), (1, 0)]


def test_what_is_more_than_zero_beside_an_unknown_time_is_a_lower_bound():
    some = replace(WATCHED, exposed_comm_ns=4, unattributed_ns=6)
    steps = [some, replace(some, step=1), replace(some, step=2), replace(WATCHED, step=3),
             replace(some, step=4, level="survey")]  # fmt: skip
    unknown = [collective(step=number, rank=0, exposed_ns=None) for number in (0, 3, 4)]
    counts = [Count(1, 0, "pg", 3, 2), Count(2, 0, "pg", 3, 3)]
    assert told(steps, unknown, counts, exposure_doubted) == [(0, 0), (1, 0), (3, 0)]
