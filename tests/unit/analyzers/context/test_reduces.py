"""Reduces on gloo by a sort: the same as by pairs of ranks, also if some ranks left early."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.context.held import pairs, until
from shardtoll.analyzers.context.reduces import of_reduces
from shardtoll.analyzers.replay.points.held_rows import SLACK_NS, with_held

Row = tuple[int, int, int]
"""Number of the operation; start and duration in units of half the slack."""

ROWS = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def columns(rows: list[Row]) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return a table of reduces with the starts and ends of its rows."""
    match, start, lasts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    place = pd.Series(match).groupby(match).cumcount()
    frame = pd.DataFrame({"op": "reduce", "match_id": pd.array(match, dtype="Int64"), "root_place": place})
    frame["match_id"] = frame["match_id"].mask(frame["match_id"] < 0)
    begin = start * (SLACK_NS // 2)
    return frame.assign(wait_ns=0), begin, begin + lasts * (SLACK_NS // 2)


def awaited_by(rows: list[Row], start: np.ndarray, end: np.ndarray) -> list[set[int]]:
    """Return for each row all others of its reduce that came before it left, pair by pair."""
    return [
        {
            other
            for other in range(len(rows))
            if rows[row][0] == rows[other][0] >= 0 and other != row and end[row] + SLACK_NS >= start[other]
        }
        for row in range(len(rows))
    ]


@given(ROWS)
def test_the_last_arrival_that_counts_is_that_of_the_pairs(rows: list[Row]) -> None:
    frame, start, end = columns(rows)
    match, place = np.array([row[0] for row in rows]), frame["root_place"].to_numpy()
    arrivals = of_reduces(frame["op"].to_numpy(dtype=object), match, place, (start, end), SLACK_NS)
    by_sort = until((arrivals.row, arrivals.row[arrivals.cut]), start, end)
    by_pair = [(row, other) for row, others in enumerate(awaited_by(rows, start, end)) for other in others]
    both = np.array(by_pair, dtype=np.int64).reshape(-1, 2).T
    for made, expected in zip(by_sort, until((both[0], both[1]), start, end), strict=True):
        assert made.tolist() == expected.tolist()


@given(ROWS)
def test_in_the_graph_each_row_waits_for_those_of_its_pairs(rows: list[Row]) -> None:
    frame, start, end = columns(rows)
    nobody = np.full(len(rows), -1)
    depends = with_held(frame, start, end, nobody, nobody, np.zeros(len(rows), dtype=np.int64))
    feeders: dict[int, set[int]] = {}
    for row, number in [*enumerate(depends.feeds), *zip(depends.fed_by, depends.fed, strict=True)]:
        feeders.setdefault(int(number), set()).add(int(row))
    for row, others in enumerate(awaited_by(rows, start, end)):
        assert feeders.get(int(depends.match[row]), {row}) - {row} == others or (
            depends.match[row] == -1 and not others
        )
        if rows[row][0] >= 0:
            since = max([start[row], *(start[other] for other in others)])
            assert depends.moved_ns[row] == max(0, end[row] - since)
        # The event graph gives a row one number: in it it waits, feeds or both.
        assert depends.match[row] in (-1, depends.feeds[row])


def test_reduces_that_all_wait_in_cost_one_number_each() -> None:
    frame, start, end = columns([(op, place, 99) for op in range(20) for place in range(50)])
    nobody = np.full(len(start), -1)
    depends = with_held(frame, start, end, nobody, nobody, np.zeros(len(start), dtype=np.int64))
    assert len(depends.fed) == 0
    assert len(set(depends.match.tolist())) == 20
    assert (depends.match == depends.feeds).all()


@pytest.mark.parametrize("op", ["broadcast", "gather", "scatter"])
def test_a_place_beyond_the_number_of_rows_is_not_taken_for_one_of_the_next_operation(op: str) -> None:
    """Operation 0 lacks places 1 and 2: its place 3 has the number that place 1 of the next would have."""
    match, place = np.array([0, 0, 1, 1]), np.array([0, 3, 0, 1])
    waiter, awaited = pairs(np.array([op] * 4, dtype=object), match, place)
    assert (match[waiter] == match[awaited]).all()
    assert {(2, 3), (3, 2)} <= set(zip(waiter.tolist(), awaited.tolist(), strict=True))
