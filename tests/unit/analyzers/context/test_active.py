"""How many intervals run at once, against counting them instant by instant."""

from __future__ import annotations

import numpy as np
import pytest

from shardtoll.analyzers.context.active import Intervals, mean_active


def intervals(*rows: tuple[int, int, int]) -> Intervals:
    lane, begin, end = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Intervals(lane, begin, end)


def test_by_hand() -> None:
    running = intervals((0, 0, 10), (0, 5, 15), (1, 0, 10))
    assert mean_active(running, running).tolist() == [1.5, 1.5, 1.0]
    assert mean_active(intervals((0, 12, 20), (1, 20, 30), (0, 3, 3)), running).tolist() == [3 / 8, 0.0, 0.0]


def test_nothing_runs() -> None:
    none = Intervals(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    assert mean_active(intervals((0, 0, 1)), none).tolist() == [0.0]
    assert mean_active(none, intervals((0, 0, 1))).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_as_counted_instant_by_instant(seed: int) -> None:
    random = np.random.default_rng(seed)
    lane, begin = random.integers(0, 3, 40), random.integers(-50, 50, 40)
    all_ = Intervals(lane, begin, begin + random.integers(1, 30, 40))
    found = mean_active(all_, all_)
    for at in range(40):
        instants = np.arange(all_.begin_ns[at], all_.end_ns[at])
        counted = [
            int(((lane == lane[at]) & (all_.begin_ns <= now) & (now < all_.end_ns)).sum()) for now in instants
        ]
        assert found[at] == pytest.approx(np.mean(counted))


@pytest.mark.parametrize(
    "damaged", [(0, 0, 1 << 60), (0, -(1 << 62), 1 << 62), (1, 5, -(1 << 63)), (2, 9, 3)]
)
def test_a_damaged_time_says_nothing_of_the_others(damaged: tuple[int, int, int]) -> None:
    sound = ((0, 0, 10), (0, 5, 15), (1, 0, 10))
    assert mean_active(intervals(*sound, damaged), intervals(*sound, damaged)).tolist() == [
        1.5,
        1.5,
        1.0,
        0.0,
    ]


@pytest.mark.parametrize("far", [1 << 60, -(1 << 60), (1 << 63) - 11])
def test_a_time_far_from_all_others_is_counted_as_they_are(far: int) -> None:
    """Lanes one behind the other would not fit 64 bits."""
    running = intervals(
        (0, 0, 10), (900, 5, 15), (900, 5, 15), (901, far, far + 10), (901, far + 5, far + 10)
    )
    found = mean_active(running, running)
    assert found.tolist() == [1.0, 2.0, 2.0, 1.5, 2.0]
    gap = intervals((0, 5, 15), (900, 20, 30), (901, 0, 10))
    assert mean_active(gap, running).tolist() == [0.5, 0.0, 0.0]
