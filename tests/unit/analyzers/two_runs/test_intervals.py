"""The intervals hold what they say they hold, on series of which everything is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shardtoll.analyzers.two_runs.intervals import (
    LEAST_BLOCKS,
    MOST_STEPS,
    Pair,
    block_length,
    fold,
    intervals,
    student,
)

Made = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def autocorrelated(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Mean 0; each step is 0.7 of the one before and a shock."""
    rows, count = shape
    values = np.zeros((rows, count + 60))
    shocks = random.normal(size=values.shape)
    for at in range(1, count + 60):
        values[:, at] = 0.7 * values[:, at - 1] + shocks[:, at]
    return values[:, 60:]


KINDS: dict[str, Made] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "exponential": lambda random, shape: random.exponential(size=shape) - 1,
    "autocorrelated": autocorrelated,
}


def pair(
    random: np.random.Generator, make: Made, rows: int, counts: tuple[int, int], change: float = 0.0
) -> Pair:
    was, now = (make(random, (rows, count)) + 10 for count in counts)
    now[0] += change
    return Pair(was, now, (was.sum(axis=0), now.sum(axis=0)), np.zeros(rows))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "counts"), [(1, (24, 24)), (20, (24, 40)), (20, (120, 120))])
def test_all_intervals_of_a_comparison_hold_the_truth_in_95_of_100(
    kind: str, rows: int, counts: tuple[int, int]
):
    random = np.random.default_rng(7)
    held = 0
    for trial in range(120):
        one = pair(random, KINDS[kind], rows, counts, change=1.0)
        (found,) = intervals([one], seed=trial)
        truth = np.zeros(rows)
        truth[0] = 1.0
        held += bool(np.all((found.low <= truth) & (truth <= found.high)))
    # Of 120 at 95 %: fewer than 108 come by chance less than once in 100 times.
    assert held >= 108


def test_rows_of_several_pairs_hold_together():
    random = np.random.default_rng(3)
    wide, alone = [], []
    for _ in range(20):
        pairs = [pair(random, KINDS["normal"], 40, (30, 30)) for _ in range(2)]
        together = intervals(pairs)[0]
        single = Pair(pairs[0].before[:1], pairs[0].after[:1], pairs[0].guide, np.zeros(1))
        (by_itself,) = intervals([single])
        wide.append(float(np.mean(together.high - together.low)))
        alone.append(float(np.mean(by_itself.high - by_itself.low)))
    assert np.mean(wide) > 1.3 * np.mean(alone)


def test_a_least_change_is_seen_in_four_of_five_cases():
    random = np.random.default_rng(5)
    least = np.mean([intervals([pair(random, KINDS["normal"], 1, (60, 60))])[0].least for _ in range(40)])
    seen = [
        intervals([pair(random, KINDS["normal"], 1, (60, 60), change=float(least))])[0].low[0] > 0
        for _ in range(150)
    ]
    assert np.mean(seen) >= 0.8


def test_equal_input_gives_equal_intervals_and_the_floor_widens_them():
    one = pair(np.random.default_rng(0), KINDS["normal"], 3, (20, 20))
    first, second = (intervals([one])[0] for _ in range(2))
    assert np.array_equal(first.low, second.low)
    wider = intervals([Pair(one.before, one.after, one.guide, np.full(3, 2.0))])[0]
    assert np.allclose(wider.high - first.high, 2.0)
    assert np.allclose(first.low - wider.low, 2.0)


def test_series_without_variation_have_intervals_of_no_width():
    flat = np.full((2, 12), 5.0)
    (found,) = intervals([Pair(flat, flat + 1, (flat[0], flat[0]), np.zeros(2))])
    assert np.allclose(found.low, 1.0)
    assert np.allclose(found.high, 1.0)


@pytest.mark.parametrize(("freedom", "expected"), [(5, 2.571), (10, 2.228), (20, 2.086), (60, 2.000)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, expected: float):
    assert student(1.959964, np.array([float(freedom)]))[0] == pytest.approx(expected, rel=0.002)


def test_blocks_are_longer_where_steps_hang_together_and_leave_enough():
    random = np.random.default_rng(1)
    loose, tied = random.normal(size=400), autocorrelated(random, (1, 400))[0]
    assert block_length(loose) < block_length(tied)
    assert block_length(np.arange(30.0)) == 30 // LEAST_BLOCKS
    assert block_length(np.ones(8)) == 1


def test_long_runs_are_folded_and_keep_their_mean():
    values = np.random.default_rng(2).normal(size=(2, 3 * MOST_STEPS))
    assert fold(values).shape == (2, MOST_STEPS)
    assert np.allclose(fold(values).mean(axis=1), values.mean(axis=1))
