"""What the report's steps tell of waiting: who waits how long, who moves data, and who is waited for."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.findings.stragglers.step_waits import COLUMNS, step_waits
from shardtoll.ledger import Collective, Step
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step


def arrivals(in_step: int, seq: int, starts_ms: Sequence[int]) -> list[Collective]:
    """Return a collective that ends on all ranks a millisecond after the last one came."""
    end_ms = max(starts_ms) + 1
    return [
        collective(
            step=in_step,
            rank=rank,
            seq=seq,
            group_size=len(starts_ms),
            issue_ns=start_ms * MS,
            start_ns=start_ms * MS,
            duration_ns=(end_ms - start_ms) * MS,
            exposed_ns=(end_ms - start_ms) * MS,
        )
        for rank, start_ms in enumerate(starts_ms)
    ]


def rows_of(rows: list[Collective], steps: list[Step]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return (step, rank) -> ms that it waits, moves data and leaves unsplit, and that others wait for it."""
    columns = step_waits(context_of(ledger(rows, steps=steps, run=run_of(3))))
    cells = columns[list(COLUMNS[:4])].astype(object).to_numpy().tolist()
    return {
        (each.step, each.rank): tuple(int(value) // MS for value in row)
        for each, row in zip(steps, cells, strict=True)
    }


def test_each_row_is_of_its_own_step_and_rank_whatever_their_order():
    rows = [*arrivals(0, 0, (1, 5, 8)), *arrivals(0, 1, (20, 12, 20)), *arrivals(1, 2, (101, 104, 101))]
    steps = [step(number, rank, start_ns=100 * number * MS) for number in (1, 0) for rank in (2, 0, 1)]
    # The longest wait for a rank counts: rank 0 waits 7 ms for rank 2, rank 1 less. In ties nobody is last.
    assert rows_of(rows, steps) == {
        (0, 0): (7, 2, 31, 0),
        (0, 1): (11, 2, 27, 0),
        (0, 2): (0, 2, 38, 7),
        (1, 0): (3, 1, 36, 0),
        (1, 1): (0, 1, 39, 3),
        (1, 2): (3, 1, 36, 0),
    }


def test_the_waiting_for_a_rank_without_a_step_on_record_is_no_other_ranks():
    rows = [*arrivals(0, 0, (1, 1, 8)), *arrivals(1, 1, (101, 101, 101))]
    steps = [step(number, rank, start_ns=100 * number * MS) for number in (0, 1) for rank in (0, 1)]
    waited_for = {place: each[3] for place, each in rows_of(rows, steps).items()}
    assert waited_for == {(0, 0): 0, (0, 1): 0, (1, 0): 0, (1, 1): 0}
