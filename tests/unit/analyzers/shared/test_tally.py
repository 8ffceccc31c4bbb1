"""Per-step figures: slowest rank, mean over steps, and unknown kept apart from zero."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers import run
from shardtoll.analyzers.shared.tally import begins_with, tally
from tests.unit.analyzers.ledgers import MS, ledger, on_ranks, step

rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),  # key
        st.integers(0, 3),  # step
        st.integers(0, 2),  # rank
        st.none() | st.integers(0, 1000),  # value
    ),
    max_size=30,
)


def frame_of(data):
    return pd.DataFrame(
        {
            "key": pd.array([row[0] for row in data], dtype="string"),
            "step": pd.array([row[1] for row in data], dtype="Int64"),
            "rank": pd.array([row[2] for row in data], dtype="Int64"),
            "value": pd.array([row[3] for row in data], dtype="Int64"),
        }
    )


def by_hand(data, key, steps):
    means = []
    for rank in {row[2] for row in data}:
        sums = defaultdict(list)
        for row in data:
            if row[0] == key and row[2] == rank:
                sums[row[1]].append(row[3])
        unknown = [step for step, values in sums.items() if None in values]
        known = [sum(values) for values in sums.values() if None not in values]
        if known:
            means.append(sum(known) / (len(steps) - len(unknown)))
    return round(max(means)) if means else None


@settings(deadline=None)
@given(rows)
def test_figures_equal_the_definition(data):
    steps = range(4)
    result = tally(frame_of(data), ("key",), ("value",), steps)
    keys = list(dict.fromkeys(row[0] for row in data))
    assert [line.text("key") for line in result.lines] == keys
    for line, key in zip(result.lines, keys, strict=True):
        mine = [row for row in data if row[0] == key]
        assert line.figures["value"] == by_hand(data, key, steps)
        assert line.total == len(mine)
        assert line.unknown == sum(row[3] is None for row in mine)
        assert line.ranks == tuple(sorted({row[2] for row in mine}))
        assert line.count >= 1


def test_the_rank_with_the_largest_mean_counts_and_a_step_without_is_zero():
    data = [("a", 0, 0, 10), ("a", 0, 0, 10), ("a", 0, 1, 80), ("a", 1, 0, 30)]
    (line,) = tally(frame_of(data), ("key",), ("value",), range(4)).lines
    assert line.figures["value"] == 80 / 4, "no more than that rank's own row in the table of the step"


def test_the_mean_over_ranks_where_asked():
    data = [("a", 0, 0, 10), ("a", 0, 1, 90)]
    (line,) = tally(frame_of(data), ("key",), ("value",), range(1), over_ranks="mean").lines
    assert line.figures["value"] == 50


def test_a_rank_with_an_unknown_part_is_left_out_not_counted_as_zero():
    data = [("a", 0, 0, 50), ("a", 0, 0, None), ("a", 0, 1, 10)]
    (line,) = tally(frame_of(data), ("key",), ("value",), range(1)).lines
    assert line.figures["value"] == 10
    assert line.unknown == 1


def test_what_ran_in_one_of_three_steps_is_not_told_as_once_a_step():
    steps = [step(number, rank) for number in range(3) for rank in (0, 1)]
    rows = on_ranks((0, 1), step=1, message_bytes=3 << 20, duration_ns=9 * MS, exposed_ns=9 * MS)
    found = run(ledger(rows, steps=steps)).findings
    (finding,) = [f for f in found if f.kind == "exposed-communication"]
    assert (finding.toll_ns, finding.bytes, finding.count) == (3 * MS, 1 << 20, 1)
    assert "exposed in 1 all_reduce in 3 steps, 1.05 MB" in finding.title


def test_a_place_names_the_librarys_frame_only_if_all_rows_have_it():
    frame = frame_of([(key, 0, 0, 1) for key in "aabbc"]).assign(source="train.py:3 (main)")
    frame["library"] = pd.array(
        ["x.py:1 (f)", "x.py:1 (f)", "x.py:1 (f)", "y.py:2 (g)", None], dtype="string"
    )
    places = [line.where("source").library for line in tally(frame, ("key", "source"), (), (0,)).lines]
    assert places == ["x.py:1 (f)", None, None]


@pytest.mark.parametrize("kind", ["object", "string", "category"])
def test_texts_that_begin_so_are_found_and_unknown_ones_are_not(kind: str) -> None:
    texts = pd.Series(["FSDP.gather", None, "DDP", "FSDP.gather", "", "aFSDP"], dtype=kind)
    assert begins_with(texts, "FSDP").tolist() == [True, False, False, True, False, False]
    assert begins_with(texts, ("DDP", "a")).tolist() == [False, False, True, False, False, True]
    assert begins_with(texts.iloc[:0], "FSDP").tolist() == []
    assert begins_with(texts.iloc[1:2], "").tolist() == [False]


@given(rows)
def test_times_are_of_the_steps_asked_for_unless_these_do_not_know_them(data):
    some = (1, 2)
    frame = frame_of(data).rename(columns={"value": "value_ns"}).assign(value=1)
    result = tally(frame, ("key",), ("value_ns", "value"), range(4), times_in=some)
    for line in result.lines:
        key = line.text("key")
        mine = [row for row in data if row[1] in some]
        there = by_hand(mine, key, some)
        if there is None and all(row[0] != key for row in mine) and by_hand(data, key, range(4)) is not None:
            # What these steps do not have costs nothing there.
            there = 0
        assert line.figures["value_ns"] == (by_hand(data, key, range(4)) if there is None else there)
        # Only times are of some steps.
        assert (
            line.figures["value"]
            == tally(frame, ("key",), ("value",), range(4)).lines[line.code].figures["value"]
        )
