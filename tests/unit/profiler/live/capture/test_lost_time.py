"""What happens between two steps belongs to the second, and to no step's duration."""

from __future__ import annotations

from typing import Any

from shardtoll.ledger.records.stall import BETWEEN_STEPS, BLOCKED
from shardtoll.profiler.live.capture.lost_time import LEAST_BETWEEN_NS, Between, lost_rows
from shardtoll.profiler.live.cause.pending import BatchSize, Before, Fetch, Reads, Region, Wait

NAME = "DataLoader.__next__"
MS = 1_000_000


def fetch(start: int, end: int, *, batch: bool = True, source: str = "a.py:1 (f)") -> Fetch:
    return Fetch(start, end, NAME, source, BatchSize(8, 1024, 2) if batch else None)


def region(step: int | None, start: int = 0, **given: Any) -> Region:
    return Region(step, start, {}, **given)


def test_what_is_fetched_between_steps_belongs_to_the_next_one() -> None:
    between = Between()
    between.ended(region(None, fetches=[fetch(0, 5 * MS)]), 6 * MS)
    step = region(0, before=between.take())
    (row,) = lost_rows(step, 3, [])
    assert (row.step, row.rank, row.kind, row.count) == (0, 3, "data", 1)
    assert (row.total_ns, row.lost_ns, row.before_ns) == (5 * MS, 0, 5 * MS)
    # Before the first step there is the program's own beginning: no gap is told of.
    between.ended(step, 20 * MS)
    assert between.take() == Before()


def test_inside_a_step_only_its_idle_instants_are_lost() -> None:
    step = region(1, fetches=[fetch(10, 30), fetch(40, 50)])
    (row,) = lost_rows(step, 0, [(0, 15), (20, 45)])
    assert (row.total_ns, row.lost_ns, row.before_ns, row.count) == (30, 20, 0, 2)
    assert (row.samples, row.tokens, row.data_ranks) == (16, 2048, 2)
    (unknown,) = lost_rows(step, 0, None)
    assert (unknown.total_ns, unknown.lost_ns) == (30, 0)


def test_the_end_of_an_epoch_takes_time_and_brings_no_batch() -> None:
    step = region(1, before=Before([fetch(0, 7, batch=False), fetch(8, 10)]))
    (row,) = lost_rows(step, 0, [])
    assert (row.count, row.before_ns) == (1, 9)


def test_lines_are_told_apart_and_what_is_no_step_has_no_rows() -> None:
    fetches = [fetch(0, 7), fetch(8, 10, source="b.py:2 (g)")]
    assert [row.before_ns for row in lost_rows(region(1, before=Before(fetches)), 0, [])] == [7, 2]
    assert lost_rows(region(None, fetches=fetches), 0, []) == ()


def test_a_gap_is_what_is_neither_fetching_nor_waiting_nor_ours() -> None:
    between = Between()
    between.ended(region(0), 1 * MS)
    gap = region(
        None,
        1 * MS,
        fetches=[fetch(2 * MS, 5 * MS)],
        waits=[Wait(5 * MS, 6 * MS)],
        excluded=[(6 * MS, 8 * MS)],
    )
    between.ended(gap, 12 * MS)
    # The region may be split where it grows long.
    between.ended(region(None, 12 * MS), 13 * MS)
    data, other = lost_rows(region(1, before=between.take()), 0, [])
    assert data.before_ns == 3 * MS
    assert (other.kind, other.name, other.before_ns, other.lost_ns) == ("host", BETWEEN_STEPS, 6 * MS, 0)


def test_a_short_gap_is_not_told() -> None:
    assert lost_rows(region(1, before=Before(other_ns=LEAST_BETWEEN_NS - 1)), 0, []) == ()


def test_a_step_that_was_taken_back_hands_on_what_came_before_it() -> None:
    between = Between()
    between.ended(region(None, before=Before([fetch(0, 5)]), fetches=[fetch(6, 7)]), 8)
    assert [f.end_ns for f in between.take().fetches] == [5, 7]


def test_reads_and_what_they_wait_for_are_rows_of_their_own() -> None:
    reads = Reads(
        "aten._local_scalar_dense", "forward", "m", "a.py:3 (f)", count=2, read_ns=30, blocked_ns=400
    )
    read, waited = lost_rows(region(1, reads={(0, 0): reads}), 0, [])
    assert (read.count, read.total_ns, read.lost_ns, read.source) == (2, 30, 0, "a.py:3 (f)")
    assert (waited.count, waited.total_ns, waited.name) == (0, 400, f"aten._local_scalar_dense{BLOCKED}")
