"""What a rank without peers usually takes: its own median over steps, as long as the step is for all."""

from __future__ import annotations

import numpy as np
import pytest

from shardtoll.analyzers.findings.origins.as_peers import Own
from shardtoll.analyzers.findings.origins.over_steps import usual
from shardtoll.analyzers.replay.points.point_graph import Graph


def graph(step: int, own_ns: dict[int, list[int]]) -> Graph:
    """Return a graph whose ranks have these own times and meet nobody."""
    ranks = tuple(own_ns)
    rank = np.repeat(np.arange(len(ranks)), [len(times) for times in own_ns.values()])
    count = len(rank)
    nothing = np.full(count, -1, dtype=np.int64)
    return Graph(
        step=step,
        ranks=ranks,
        begin_ns=np.zeros(len(ranks), dtype=np.int64),
        rank=rank,
        row=nothing,
        done=np.zeros(count, dtype=np.bool_),
        own_ns=np.concatenate([np.array(times, dtype=np.int64) for times in own_ns.values()]),
        idle_ns=np.zeros(count, dtype=np.int64),
        index=np.zeros(0, dtype=np.int64),
        match=np.zeros(0, dtype=np.int64),
        feeds=np.zeros(0, dtype=np.int64),
        moved_ns=np.zeros(0, dtype=np.int64),
        left_out_ns=np.zeros(2, dtype=np.int64),
    )


def beyond(steps: list[dict[int, list[int]]]) -> list[dict[int, int]]:
    """Return what each rank has beyond its usual, by step."""
    graphs = [graph(number, own) for number, own in enumerate(steps)]
    owns = [Own(each, {}, told) for each, told in zip(graphs, usual(graphs, {}), strict=True)]
    return [{rank: own.excess_ns(rank) for rank in own.compared} for own in owns]


USUAL = {0: [100, 200], 1: [300, 400], 2: [500, 600]}


def test_a_rank_that_is_slow_in_one_step_is_so_by_what_it_takes_longer() -> None:
    slow = USUAL | {1: [300, 900]}
    each = beyond([USUAL, slow, USUAL, USUAL])
    assert each[1] == {0: 0, 1: 500, 2: 0}
    assert each[0] == {0: 0, 1: 0, 2: 0}


def test_a_step_that_is_longer_for_all_is_slow_for_none() -> None:
    long = {rank: [2 * time for time in times] for rank, times in USUAL.items()}
    assert beyond([USUAL, long, USUAL, USUAL])[1] == {0: 0, 1: 0, 2: 0}


def test_points_that_do_not_correspond_are_scaled() -> None:
    more = USUAL | {1: [300, 400, 700]}
    each = beyond([USUAL, more, USUAL, USUAL])
    assert each[1][1] == pytest.approx(700, abs=2)


def test_two_steps_say_nothing_of_what_is_usual() -> None:
    assert beyond([USUAL, USUAL | {1: [300, 900]}]) == [{}, {}]


def test_a_rank_with_peers_is_held_to_them_and_not_to_itself() -> None:
    graphs = [graph(number, USUAL) for number in range(4)]
    assert all(0 not in told for told in usual(graphs, {0: (1,), 1: (0,)}))
