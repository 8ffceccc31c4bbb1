"""Which records of different ranks are one collective, seen in the report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from shardtoll.ledger import Collective, Report
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import match_numbers
from tests.sample_reports import MS, collective


def of(*rows: Collective) -> Report:
    tables = {**sample_reports.report().tables, "collectives": to_table("collectives", rows)}
    return replace(sample_reports.report(), tables=tables)


def pairs(*rows: Collective) -> list[list[int]]:
    """Return the rows that are one collective, by their places."""
    found = defaultdict(list)
    for at, number in enumerate(match_numbers(of(*rows)).tolist()):
        found[number].append(at)
    found.pop(-1, None)
    return sorted(found.values())


def call(rank: int, seq: int | None, at: int = 0, size: int = 8, **changes: object) -> Collective:
    given = {"seq": seq, "start_ns": at * MS, "exposed_ns": MS, "wait_ns": rank * MS} | changes
    return collective(0, rank, 0, size, **given)


def test_a_group_with_a_record_without_a_number_goes_by_order():
    assert pairs(call(0, 0), call(0, None, 1), call(1, 0), call(1, None, 1)) == [[0, 2], [1, 3]]


def test_a_group_without_numbers_goes_by_order_in_the_step():
    asked = ((0, 0, 8), (0, 1, 64), (1, 9, 64), (1, 7, 8))
    rows = [call(rank, None, at, size, issue_ns=at * MS) for rank, at, size in asked]
    assert pairs(*rows) == [[0, 3], [1, 2]]
    assert pairs(*rows[:3]) == [], "one has more than the other"
    assert pairs(*(replace(row, step=None) for row in rows)) == []


def test_numbers_that_messages_took_do_not_count():
    message = call(0, 0, 0, op="send", root=1)
    assert pairs(message, call(0, 1, 1), call(1, 0, 1)) == [[1, 2]]
    assert pairs(call(0, 1, 1), call(1, 0, 1)) == []


def story(rank: int, first: int, *sizes: int, step: int = 0) -> list[Collective]:
    return [replace(call(rank, first + at, at, size), step=step) for at, size in enumerate(sizes)]


def test_numbers_a_constant_apart_tell_one_story():
    one, other = story(0, 5, 8, 64), story(1, 3, 8, 64)
    assert pairs(*one, *other) == [[0, 2], [1, 3]]
    # The numbers overlap: 5 of rank 0 is 3 of rank 1, and not its 5.
    longer = [*story(0, 5, 8, 64, 8), *story(1, 3, 8, 64, 8)]
    assert pairs(*longer) == [[0, 3], [1, 4], [2, 5]]
    steps = [*story(0, 5, 8), *story(0, 6, 8, step=1), *story(1, 3, 8), *story(1, 4, 8, step=1)]
    assert pairs(*steps) == [[0, 2], [1, 3]]


def test_another_story_or_one_record_is_none():
    assert pairs(*story(0, 5, 8, 64), *story(1, 3, 64, 8)) == []
    assert pairs(*story(0, 5, 8, 64), *story(1, 3, 8, 64, 8)) == [[0, 4]], "5 is 5 where more is on record"
    assert pairs(*story(0, 5, 8), *story(1, 3, 8)) == []
    gap = [*story(0, 5, 8), *story(0, 7, 8), *story(1, 3, 8, 8)]
    assert pairs(*gap) == []
    # In a trace steps are numbered by each rank for itself: places in their order say nothing.
    report = of(*story(0, 5, 8, 64), *story(1, 3, 8, 64))
    traced = replace(report, run=replace(report.run, source="trace"))
    assert set(match_numbers(traced).tolist()) == {-1}


def test_several_of_one_number_pair_up_in_the_order_they_were_asked_for():
    def asked(rank: int, issue: int | None, start: int) -> Collective:
        return call(rank, 3, start, issue_ns=issue)

    rows = [asked(0, 1, 5), asked(0, 2, 4), asked(1, 2, 5), asked(1, 1, 6)]
    assert pairs(*rows) == [[0, 3], [1, 2]]
    assert pairs(*rows[:3], asked(1, None, 4)) == [[0, 2], [1, 3]], "not all are known: starts count"
    assert pairs(*rows[:3]) == [[0, 2]]


@pytest.mark.parametrize(
    ("op", "found"), [("all_reduce", []), ("barrier", [[0, 1]]), ("all_to_all", [[0, 1]])]
)
def test_ranks_agree_on_the_size_but_of_some_operations(op: str, found: list[list[int]]):
    assert pairs(call(0, 0, size=8, op=op), call(1, 0, size=9, op=op)) == found
