"""Which records of different ranks are one collective, and who came last to it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from shardtoll.dashboards.arrivals import arrivals
from shardtoll.dashboards.late_ranks import late_ranks
from shardtoll.dashboards.match_ids import match_ids
from shardtoll.dashboards.row_codes import all_differ, equal_rows
from shardtoll.dashboards.shifted_numbers import shifted
from shardtoll.dashboards.waited_for import waited_for
from shardtoll.ledger import Collective, Report
from shardtoll.ledger.tables import to_table
from tests import sample_reports
from tests.sample_reports import MS, collective


def of(*rows: Collective) -> Report:
    tables = {**sample_reports.report().tables, "collectives": to_table("collectives", rows)}
    return replace(sample_reports.report(), tables=tables)


def pairs(*rows: Collective) -> list[list[int]]:
    """Return the rows that are one collective, by their places."""
    found = defaultdict(list)
    for at, number in enumerate(match_ids(of(*rows)).tolist()):
        found[number].append(at)
    found.pop(-1, None)
    return sorted(found.values())


def call(rank: int, seq: int | None, at: int = 0, size: int = 8, **changes: object) -> Collective:
    given = {"seq": seq, "start_ns": at * MS, "exposed_ns": MS, "wait_ns": rank * MS} | changes
    return collective(0, rank, 0, size, **given)


def test_in_a_group_with_numbers_a_record_without_one_meets_nobody():
    assert pairs(call(0, 0), call(0, None, 1), call(1, 0), call(1, None, 1)) == [[0, 2]]


def test_a_group_without_numbers_goes_by_order_in_the_step():
    rows = [call(0, None, 0, 8), call(0, None, 1, 64), call(1, None, 9, 64), call(1, None, 7, 8)]
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


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_shifted_numbers_are_those_found_one_by_one(seed: int):
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, int]] = []
    wanted = []
    for group in range(12):
        first = rng.integers(0, 3, size=3) * 10 ** int(rng.integers(0, 12))
        stories = [rng.integers(0, 2, size=int(rng.integers(1, 3))).tolist() for _ in range(3)]
        if rng.random() < 0.7:
            stories = [stories[0]] * 3
        for rank, (at, story) in enumerate(zip(first.tolist(), stories, strict=True)):
            rows += [(group, rank, at + place, fact) for place, fact in enumerate(story)]
        if len(set(first.tolist())) > 1 and len(stories[0]) > 1 and stories == [stories[0]] * 3:
            wanted.append(group)
    group, rank, number, fact = rng.permutation(np.array(rows, dtype=np.int64)).T
    assert shifted(group, rank, number, (fact,)).tolist() == wanted
    assert not len(shifted(group[:0], rank[:0], number[:0], (fact[:0],)))


def test_another_story_or_one_record_is_none():
    assert pairs(*story(0, 5, 8, 64), *story(1, 3, 64, 8)) == []
    assert pairs(*story(0, 5, 8, 64), *story(1, 3, 8, 64, 8)) == [[0, 4]], "5 is 5 where more is on record"
    assert pairs(*story(0, 5, 8), *story(1, 3, 8)) == []
    gap = [*story(0, 5, 8), *story(0, 7, 8), *story(1, 3, 8, 8)]
    assert pairs(*gap) == []
    # In a trace steps are numbered by each rank for itself: places in their order say nothing.
    report = of(*story(0, 5, 8, 64), *story(1, 3, 8, 64))
    traced = replace(report, run=replace(report.run, source="trace"))
    assert set(match_ids(traced).tolist()) == {-1}


def test_several_of_one_number_pair_up_in_the_order_they_were_asked_for():
    def asked(rank: int, issue: int | None, start: int) -> Collective:
        return call(rank, 3, start, issue_ns=issue)

    rows = [asked(0, 1, 5), asked(0, 2, 4), asked(1, 2, 5), asked(1, 1, 6)]
    assert pairs(*rows) == [[0, 3], [1, 2]]
    assert pairs(*rows[:3], asked(1, None, 4)) == [[0, 2], [1, 3]], "not all are known: starts count"
    assert pairs(*rows[:3]) == []
    assert pairs(*rows[:3], replace(asked(1, None, 6), start_ns=None)) == []


@pytest.mark.parametrize(
    ("op", "found"), [("all_reduce", []), ("barrier", [[0, 1]]), ("all_to_all", [[0, 1]])]
)
def test_ranks_agree_on_the_size_but_of_some_operations(op: str, found: list[list[int]]):
    assert pairs(call(0, 0, size=8, op=op), call(1, 0, size=9, op=op)) == found


@pytest.mark.parametrize("changes", [{"op": "all_gather"}, {"message_bytes": 9}, {"seq": 1}])
def test_nobody_is_late_to_what_the_other_was_not_in(changes: dict[str, object]):
    rows = [call(0, 0), call(1, 0)]
    assert late_ranks(of(*rows))[1] == 1
    rows[1] = replace(rows[1], **changes)  # type: ignore[arg-type]
    assert late_ranks(of(*rows)) == ([], 0)
    assert waited_for(of(*rows)) is None


def test_the_one_that_waited_least_came_last():
    dice = random.Random(3)
    waits = [[dice.choice([0, 5_000, 20_000, 90_000]) for _ in range(4)] for _ in range(60)]
    rows = [
        call(rank, seq, seq, group="world", group_size=4, mesh_dim=None, wait_ns=wait)
        for seq, each in enumerate(waits)
        for rank, wait in enumerate(each)
    ]
    dice.shuffle(rows)
    found = arrivals(of(*rows))
    assert len(found.first) == 60
    for at, (first, count) in enumerate(zip(found.first, found.count, strict=True)):
        own = [rows[row] for row in found.rows[first : first + count]]
        (seq,) = {row.seq for row in own}
        least, second, *_ = sorted(waits[seq])
        late = waits[seq].index(least) if second - least >= 10_000 else -1
        assert (found.last[at], found.late_ns[at]) == (late, second - least)


@pytest.mark.parametrize("spread", [3, 10**6, 2**62], ids=["near", "far", "farthest"])
def test_equal_numbers_are_equal_rows(spread: int):
    dice = random.Random(5)
    known = [dice.randrange(-spread, spread) for _ in range(4)]
    columns = [np.array([dice.choice(known) for _ in range(90)], dtype=np.int64) for _ in range(3)]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    code = equal_rows(*columns)
    assert len(set(code.tolist())) == len(set(zip(rows, code.tolist(), strict=True))) == len(set(rows))
    assert sorted(set(code.tolist())) == list(range(len(set(rows))))
    assert not all_differ(*columns)
    once = [at for at, row in enumerate(rows) if Counter(rows)[row] == 1] + [rows.index(rows[0])]
    at = np.array(sorted({*once}), dtype=np.int64)
    assert all_differ(*(column[at] for column in columns))
