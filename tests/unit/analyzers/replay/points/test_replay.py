"""A replay of what was recorded takes as long as that did, and points come after what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.replay.points.own_time import blocked, blocked_until
from shardtoll.analyzers.replay.points.point_graph import Graph, graphs
from shardtoll.analyzers.replay.points.point_order import in_order
from shardtoll.analyzers.replay.points.point_replay import replay
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.ledger import Collective, Ledger, Step
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step
from tests.unit.analyzers.made_jobs import pipelines


def graphs_of(made: Ledger) -> tuple[Graph, ...]:
    return graphs(make_context(made, choose_fabric(made.run)))


@pytest.mark.parametrize("slow", [{}, {0: 2.0}, {1: 1.5, 4: 3.0}])
def test_a_step_that_is_not_changed_takes_what_it_took(slow: dict[int, float]) -> None:
    made = pipelines(3, 2, 5, slow=slow)
    took = made.frame("steps").groupby("step")["duration_ns"].max()
    for graph in graphs_of(made):
        assert replay(graph).lasted_ns == took[graph.step]


def test_a_step_whose_own_work_takes_half_takes_hardly_more_than_half() -> None:
    (graph, *_) = graphs_of(pipelines(3, 2, 5))
    half = replay(graph, graph.own_ns // 2).lasted_ns
    assert 0.5 < half / replay(graph).lasted_ns < 0.52


def checked(number: int, lasts: int) -> tuple[list[Collective], list[Step]]:
    """Two ranks' step of `lasts`, whose second collective comes 18 ms after its begin."""
    begin = 100 * MS * number
    rows = [
        collective(step=number, rank=rank, seq=2 * number + nth, start_ns=begin + at, duration_ns=MS)
        for rank in (0, 1)
        for nth, at in ((1, 4 * MS), (2, 18 * MS))
    ]
    own = {"compute_ns": 0, "exposed_comm_ns": 0, "idle_ns": lasts}
    steps = [step(number, rank, start_ns=begin, duration_ns=lasts, **own) for rank in (0, 1)]
    return rows, steps


@pytest.mark.parametrize(
    ("source", "lasts", "kept"),
    [
        ("live", (20, 20), [0, 1]),
        # 10 ms of the first step were a check.
        ("live", (10, 20), [1]),
        ("live", (10, 10), [0, 1]),
        # Device work may begin after the host's step has ended.
        ("trace", (10, 20), [0, 1]),
    ],
)
def test_a_live_step_whose_collectives_come_after_its_end_is_left_out(
    source: str, lasts: tuple[int, int], kept: list[int]
) -> None:
    parts = [checked(number, each * MS) for number, each in enumerate(lasts)]
    rows = [row for part, _ in parts for row in part]
    steps = [row for _, part in parts for row in part]
    made = ledger(rows, run=run_of(2, source=source), steps=steps)
    assert [graph.step for graph in graphs_of(made)] == kept


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
    assert sorted(in_order(rank, row, done, match, match).tolist()) == list(range(8))


def test_a_rank_that_waits_twice_for_one_collective_goes_on_once() -> None:
    """Damaged records: rank 0 ends a collective twice, rank 1 arrives at it after one that never ends."""
    rank = np.array([0, 0, 0, 1, 1])
    row = np.array([0, 1, 4, 3, 2])
    done = np.array([True, True, False, True, False])
    match = np.array([0, 0, 0, 1, 1])
    feeds = np.array([-1, -1, 0, -1, 1])
    assert sorted(in_order(rank, row, done, match, feeds).tolist()) == list(range(5))


def rooted(op: str, starts: tuple[int, ...], ends: tuple[int, ...], backend: str = "nccl") -> Graph:
    """Return the graph of one step with one operation, whose root is rank 0; times in ms."""
    count = len(starts)
    rows = [
        collective(
            rank=rank,
            op=op,
            root=0,
            group_size=count,
            start_ns=start * MS,
            duration_ns=(end - start) * MS,
            exposed_ns=(end - start) * MS,
        )
        for rank, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    steps = [step(rank=rank, compute_ns=40 * MS, exposed_comm_ns=50 * MS) for rank in range(count)]
    (graph,) = graphs_of(ledger(rows, run=run_of(count, backend=backend), steps=steps))
    return graph


def waits_ms(graph: Graph, sooner: dict[int, int] | None = None) -> list[int]:
    """Return how long each rank waits, with some ranks coming sooner by so many ms."""
    own = graph.own_ns.copy()
    for rank, ms in (sooner or {}).items():
        own[graph.of_rank(rank)[0]] -= ms * MS
    return [round(int(ns) / MS) for ns in replay(graph, own).waited_ns]


def test_receivers_of_a_broadcast_wait_for_its_root_alone() -> None:
    graph = rooted("broadcast", (40, 10, 60), (41, 45, 65))
    assert waits_ms(graph) == [0, 30, 0]
    assert waits_ms(graph, {0: 20}) == [0, 10, 0]
    assert waits_ms(graph, {2: 55}) == [0, 30, 35]


def test_the_root_of_a_reduce_waits_for_the_last_and_nobody_for_it() -> None:
    graph = rooted("reduce", (10, 20, 50), (55, 21, 51))
    assert waits_ms(graph) == [40, 0, 0]
    assert waits_ms(graph, {2: 40}) == [10, 0, 0]
    assert waits_ms(rooted("reduce", (50, 20, 10), (55, 21, 11))) == [0, 0, 0]


def test_on_gloo_the_root_of_a_broadcast_waits_for_those_it_sends_to() -> None:
    # Rank 0 sends to ranks 1 and 2, rank 1 on to rank 3. Rank 1 is late.
    graph = rooted("broadcast", (20, 60, 10, 30), (61, 65, 25, 66), backend="gloo")
    assert waits_ms(graph) == [40, 0, 10, 30]
    # It then comes before rank 3, for which it waits.
    assert waits_ms(graph, {1: 35}) == [5, 5, 10, 0]
    # Rank 2 waits for the root alone, and rank 3 holds up rank 1 and not the root.
    assert waits_ms(graph, {0: 20}) == [60, 0, 0, 30]
    late = rooted("broadcast", (20, 10, 15, 60), (25, 64, 30, 66), backend="gloo")
    assert waits_ms(late) == [0, 50, 5, 0]
    assert waits_ms(late, {3: 45}) == [0, 10, 5, 5]


def test_on_gloo_the_leaves_of_a_gather_wait_for_its_root_and_it_for_all() -> None:
    graph = rooted("gather", (30, 10, 50), (55, 31, 52), backend="gloo")
    assert waits_ms(graph) == [20, 20, 0]
    assert waits_ms(graph, {2: 45}) == [0, 20, 25]
    assert waits_ms(graph, {0: 25}) == [45, 0, 0]
