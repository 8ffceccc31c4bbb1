"""Which steps tell how long communication was exposed."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger import Count, Step
from shardtoll.ledger.records.told import exposure_doubted, exposure_told
from shardtoll.ledger.tables.tables import to_records, to_table
from tests.unit.analyzers.ledgers import collective

WATCHED = Step(0, 0, 0, 10, 0, 0, 0, 0, 10, level="watch")


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
