"""A replay of what was recorded takes as long as that did, and points come after what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.replay.graph import Graph, graphs
from shardtoll.analyzers.replay.own_time import blocked, blocked_until
from shardtoll.analyzers.replay.point_order import in_order
from shardtoll.analyzers.replay.simulate import replay
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Ledger
from tests.unit.analyzers.made_jobs import pipelines


def graphs_of(ledger: Ledger) -> tuple[Graph, ...]:
    return graphs(make_context(ledger, choose_fabric(ledger.run)))


@pytest.mark.parametrize("slow", [{}, {0: 2.0}, {1: 1.5, 4: 3.0}])
def test_a_step_that_is_not_changed_takes_what_it_took(slow: dict[int, float]) -> None:
    ledger = pipelines(3, 2, 5, slow=slow)
    took = ledger.frame("steps").groupby("step")["duration_ns"].max()
    for graph in graphs_of(ledger):
        assert replay(graph).lasted_ns == took[graph.step]


def test_a_step_whose_own_work_takes_half_takes_hardly_more_than_half() -> None:
    ledger = pipelines(3, 2, 5)
    (graph, *_) = graphs_of(ledger)
    half = replay(graph, graph.own_ns // 2).lasted_ns
    assert 0.5 < half / replay(graph).lasted_ns < 0.52


def test_what_is_exposed_at_one_instant_blocks_once() -> None:
    # A message sent and one received share the instant; together they block all of it.
    spans = blocked([(0, 100, 50), (0, 100, 50), (150, 200, 10)])
    assert blocked_until(spans, np.array([0, 100, 180, 195, 300])).tolist() == [0, 100, 100, 105, 110]


def test_a_rank_is_blocked_at_the_end_of_what_it_waits_for() -> None:
    assert blocked([(0, 100, 30)]) == [(70, 100)]


def test_records_that_contradict_each_other_come_to_an_end() -> None:
    # Each rank is done with the one collective before it arrives at the other.
    rank = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    row = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    done = np.array([False, True] * 4)
    match = np.array([0, 1, 1, 0])
    assert sorted(in_order(rank, row, done, match).tolist()) == list(range(8))
