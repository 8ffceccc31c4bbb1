"""The event engine against an oracle that knows no order, and against closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.replay.events import engine, event_order
from shardtoll.analyzers.replay.events.contention import Contention, overlap_ns
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind, Role
from shardtoll.analyzers.replay.events.event_order import DeadlockError, order_of
from shardtoll.analyzers.replay.events.outcome import Outcome


@st.composite
def graphs(draw: st.DrawFn) -> EventGraph:
    """Graphs whose edges point forward and whose rendezvous come in one order on all lanes."""
    builder = Builder()
    lanes = draw(st.integers(1, 4))
    met = 0
    for number in range(draw(st.integers(1, 16))):
        lane = draw(st.integers(-1, lanes - 1))
        times = [draw(st.integers(0, 9)) for _ in range(3)]
        meet = -1
        if draw(st.booleans()):
            met = draw(st.integers(met, met + 1))
            meet = met
        # Within a rendezvous no node may come after another of it that waits for more to come.
        before = [
            other
            for other in draw(st.lists(st.integers(0, max(number - 1, 0)), max_size=3))
            if other < number and builder.graph().meet[other] != met
        ]
        role = draw(st.sampled_from(list(Role)))
        if meet >= 0 and any(
            each == lane >= 0 and at == meet
            for each, at in zip(builder.graph().lane, builder.graph().meet, strict=True)
        ):
            meet = -1
        node = builder.node(
            lane, lane, Kind.HOST, times[0], gap_ns=times[1], meet=meet, role=role, release_ns=times[2]
        )
        for other in before:
            builder.edge(other, node, draw(st.integers(-3, 9)))
    return builder.graph()


def oracle(graph: EventGraph) -> tuple[list[float], list[float]] | None:
    """Return arrivals and ends by raising all times until nothing changes; None if they rise for ever."""
    n = len(graph)
    arrival, end = [0.0] * n, [0.0] * n
    for _ in range(4 * n + 4):
        was = (list(arrival), list(end))
        for node in range(n):
            bounds = [float(graph.release_ns[node])]
            on_lane = [o for o in range(node) if graph.lane[o] == graph.lane[node] >= 0]
            if on_lane:
                bounds.append(end[on_lane[-1]] + graph.gap_ns[node])
            for source, target, lag in zip(graph.edge_from, graph.edge_to, graph.lag_ns, strict=True):
                if target == node:
                    bounds.append(end[source] + lag)
            arrival[node] = max(bounds)
        for node in range(n):
            peers = [
                arrival[other]
                for other in range(n)
                if graph.meet[other] == graph.meet[node] >= 0 and graph.role[other] != Role.WAITS
            ]
            waits = graph.role[node] != Role.FEEDS
            end[node] = max([arrival[node], *(peers if waits else [])]) + graph.duration_ns[node]
        if was == (arrival, end):
            return arrival, end
    return None


@pytest.mark.parametrize(("wide", "ready"), [(0, 0), (0, 1 << 60), (1 << 60, 0), (1 << 60, 1 << 60)])
@settings(deadline=None, max_examples=80)
@given(graph=graphs())
def test_both_orders_and_sweeps_agree_with_the_oracle(wide: int, ready: int, graph: EventGraph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "WIDE", wide)
        patch.setattr(event_order, "LEAST_READY", ready)
        try:
            outcome = simulate(graph)
        except DeadlockError:
            assert oracle(graph) is None
            return
    expected = oracle(graph)
    assert expected is not None
    assert outcome.arrival_ns.tolist() == expected[0]
    assert outcome.end_ns.tolist() == expected[1]


@settings(deadline=None, max_examples=50)
@given(graph=graphs())
def test_each_arrival_is_explained_by_what_held_it_up(graph: EventGraph) -> None:
    try:
        outcome = simulate(graph)
    except DeadlockError:
        return
    lags = {}
    for source, target, lag in zip(graph.edge_from, graph.edge_to, graph.lag_ns, strict=True):
        lags.setdefault((int(source), int(target)), []).append(float(lag))
    for node, before in enumerate(outcome.held_by.tolist()):
        assert outcome.start_ns[node] == outcome.arrival_ns[outcome.last[node]]
        if before < 0:
            assert outcome.arrival_ns[node] == graph.release_ns[node]
            continue
        delays = lags.get((before, node), [])
        if graph.lane[before] == graph.lane[node] >= 0:
            delays = [*delays, float(graph.gap_ns[node])]
        assert any(outcome.arrival_ns[node] == outcome.end_ns[before] + delay for delay in delays)


@settings(deadline=None, max_examples=80)
@given(graph=graphs())
def test_both_orders_find_the_same_levels(graph: EventGraph) -> None:
    made = []
    for ready in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_order, "LEAST_READY", ready)
            try:
                made.append(order_of(graph))
            except DeadlockError:
                return
    for name in ("level", "arrival_level", "role", "before", "starts", "edge"):
        assert getattr(made[0], name).tolist() == getattr(made[1], name).tolist()
    assert sorted(made[0].events) == sorted(made[1].events)


def two_ranks(compute: tuple[float, float], **given: Any) -> EventGraph:
    builder = Builder()
    for rank, lasts in enumerate(compute):
        first = builder.node(rank, 2 * rank, Kind.COMPUTE, lasts)
        builder.node(rank, 2 * rank + 1, Kind.COLLECTIVE, 10, meet=0, after=[first], **given)
    return builder.graph()


def test_an_all_reduce_moves_when_the_last_rank_has_arrived() -> None:
    outcome = simulate(two_ranks((100, 300)))
    assert outcome.end_ns.tolist() == [100, 310, 300, 310]
    assert outcome.wait_ns.tolist() == [0, 200, 0, 0]
    assert outcome.last.tolist() == [0, 3, 2, 3]
    assert outcome.makespan_ns == 310
    assert outcome.end_by_rank(two_ranks((1, 1)).rank).tolist() == [310, 310]


def test_other_durations_stand_in_and_the_order_is_used_again() -> None:
    graph = two_ranks((100, 300))
    order = order_of(graph)
    other = np.array([100.0, 10.0, 120.0, 10.0])
    assert simulate(graph, other, order=order).makespan_ns == 130
    assert simulate(graph, order=order).makespan_ns == 310


def test_who_only_feeds_waits_for_nobody() -> None:
    builder = Builder()
    builder.node(0, 0, Kind.COLLECTIVE, 10, meet=0, role=Role.FEEDS, release_ns=5)
    builder.node(1, 1, Kind.COLLECTIVE, 10, meet=0, role=Role.WAITS)
    builder.node(2, 2, Kind.COLLECTIVE, 10, meet=0, role=Role.WAITS, release_ns=50)
    outcome = simulate(builder.graph())
    assert outcome.end_ns.tolist() == [15, 15, 60]


def crossed() -> EventGraph:
    """Two ranks that meet in opposite orders: a deadlock."""
    builder = Builder()
    for rank, order in ((0, (0, 1)), (1, (1, 0))):
        for number in order:
            builder.node(rank, rank, Kind.COLLECTIVE, 10, meet=number)
    return builder.graph()


def test_a_deadlock_is_reported_with_its_nodes() -> None:
    with pytest.raises(DeadlockError, match="4 nodes wait for each other") as caught:
        simulate(crossed())
    assert caught.value.nodes.tolist() == [0, 1, 2, 3]


def test_records_that_contradict_each_other_go_on_when_forced() -> None:
    outcome = simulate(crossed(), force=True)
    assert np.isfinite(outcome.end_ns).all()
    # Rank 0 leaves the first rendezvous alone; from there on all is complete.
    assert outcome.end_ns.tolist() == [10, 20, 20, 30]


def test_a_cycle_of_edges_cannot_be_forced() -> None:
    builder = Builder()
    one, two = builder.node(0, 0, Kind.HOST, 1), builder.node(1, 1, Kind.HOST, 1)
    builder.edges([one, two], [two, one])
    with pytest.raises(DeadlockError):
        simulate(builder.graph(), force=True)


def test_overlap_costs_each_side_its_share_of_the_other() -> None:
    builder = Builder()
    builder.node(0, 0, Kind.COMPUTE, 100)
    builder.node(0, 1, Kind.COLLECTIVE, 50)
    builder.node(1, 2, Kind.COMPUTE, 100)
    graph = builder.graph()
    assert overlap_ns(graph, simulate(graph)).tolist() == [50, 50, 0]
    slowed = simulate(graph, contention=Contention(0.2, "made up", passes=1))
    assert slowed.end_ns.tolist() == [110, 60, 100]
    recorded = Contention(0.2, "made up", passes=1, already_ns=np.array([50.0, 50.0, 0.0]))
    assert simulate(graph, contention=recorded).end_ns.tolist() == [100, 50, 100]


def test_waiting_at_a_rendezvous_slows_nobody() -> None:
    builder = Builder()
    builder.node(0, 0, Kind.COMPUTE, 100)
    builder.node(0, 1, Kind.COLLECTIVE, 10, meet=0)
    builder.node(1, 2, Kind.COLLECTIVE, 10, meet=0, release_ns=200)
    graph = builder.graph()
    assert overlap_ns(graph, simulate(graph)).tolist() == [0, 0, 0]


def test_a_builder_takes_whole_arrays() -> None:
    one, many = Builder(), Builder()
    for number in range(4):
        one.node(0, 0, Kind.HOST, number, gap_ns=1.0)
    one.edge(0, 3, 2.5)
    numbers = many.nodes(0, 0, int(Kind.HOST), np.arange(4), gap_ns=1.0)
    many.edges(numbers[0], numbers[3], 2.5)
    for name in ("duration_ns", "lane", "gap_ns", "kind", "edge_from", "edge_to", "lag_ns"):
        assert getattr(one.graph(), name).tolist() == getattr(many.graph(), name).tolist()
    assert (many.lane(), many.rendezvous()) == (1, 0)


@pytest.mark.parametrize("lasts", [-1.0, float("nan")])
def test_a_node_without_a_time_is_refused(lasts: float) -> None:
    with pytest.raises(ValueError, match="lasts"):
        Builder().node(0, 0, Kind.HOST, lasts)
    builder = Builder()
    builder.nodes(0, 0, int(Kind.HOST), [lasts, 1.0])
    with pytest.raises(ValueError, match="negative or unknown"):
        builder.graph()


def test_an_edge_to_no_node_is_refused() -> None:
    builder = Builder()
    builder.node(0, 0, Kind.HOST, 1)
    builder.edge(0, 1)
    with pytest.raises(ValueError, match="none of 1"):
        builder.graph()


def test_an_empty_graph_takes_no_time() -> None:
    outcome: Outcome = simulate(Builder().graph())
    assert outcome.makespan_ns == 0
    assert len(outcome.last) == 0


def test_edited_keeps_what_is_not_named() -> None:
    graph = two_ranks((100, 300))
    other = graph.edited(duration_ns=graph.duration_ns * 2)
    assert simulate(other).makespan_ns == 620
    assert other == replace(graph, duration_ns=other.duration_ns)
