"""Messages that hosts hand to each other: matched by the pipeline's order, and held to it in the replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.context import handed_over
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.handed_over import Messages, by_match, by_order, messages
from shardtoll.analyzers.findings.origins.like_with_like import alike_ranks
from shardtoll.analyzers.recorded import from_events
from shardtoll.analyzers.recorded.handed_edges import Nodes, edges_of
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.whatif.edits.draft import Draft
from tests.unit.truth import tell

HOSTS = {"strategy": "pipeline", "transport": "host", "ranks": 8}


def replayed(**knobs: Any) -> tuple[Context, Recorded]:
    """Return a made-up job's context and graph."""
    context = context_of(tell(**HOSTS, **knobs).job.ledger)
    recorded = from_events.from_events(context)
    assert recorded is not None
    return context, recorded


def matched(monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> list[tuple[int, int]]:
    """Return sender and receiver of each message that is matched in a job."""
    seen: list[tuple[int, int]] = []

    def kept(*given: Any) -> Messages:
        made = messages(*given)
        seen.extend(zip(made.source.tolist(), made.target.tolist(), strict=True))
        return made

    monkeypatch.setattr(from_events, "messages", kept)
    replayed(**knobs)
    return seen


def test_each_message_is_matched_with_the_next_stage_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = matched(monkeypatch, steps=2)
    # 4 micro-batches, forward and backward, over 7 borders in 2 steps.
    assert len(pairs) == 4 * 2 * 7 * 2
    assert {abs(source - target) for source, target in pairs} == {1}


def test_pipelines_beside_each_other_keep_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = matched(monkeypatch, steps=2, replicas=2)
    assert len(pairs) == 4 * 2 * 3 * 2 * 2
    assert {(source % 2, target % 2) for source, target in pairs} == {(0, 0), (1, 1)}


def test_without_marks_the_launches_say_which_pass_a_message_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(matched(monkeypatch, steps=2, schedule_marked=False)) == 4 * 2 * 7 * 2


def test_stages_in_another_order_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a V every second stage goes back along the ranks: no order on record fits."""
    assert matched(monkeypatch, steps=2, chunks=2, as_v=True) == []


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_unedited_replay_is_the_record(replicas: int) -> None:
    _, recorded = replayed(replicas=replicas, straggler=2)
    was, now = recorded.step_times(recorded.recorded()), recorded.step_times(recorded.replay())
    assert max(abs(now[key] / was[key] - 1) for key in was) < 1e-6


@pytest.mark.parametrize("cause", ["forward", "backward"])
def test_without_the_slow_stage_all_that_waited_for_it_goes_on_sooner(cause: str) -> None:
    context, slow = replayed(replicas=2, straggler=3, cause=cause)
    _, even = replayed(replicas=2)
    draft = Draft(slow)
    draft.ranks_as((3,), alike_ranks(context).peers)
    before, after = slow.lasts_ns(slow.recorded()), even.lasts_ns(even.recorded())
    assert before > 1.15 * after
    assert draft.lasts_ns() == pytest.approx(after, rel=0.005)


def nodes(*rows: tuple[int, int, int, float, float, float]) -> Nodes:
    """Return nodes of (rank, lane, thread, start, end, asked)."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Nodes(*columns)


def of(sent: float, called: float, got: float) -> Messages:
    """Return one message of rank 0 to rank 1."""
    zero = np.array([0])
    times = (np.array([at], dtype=np.float64) for at in (sent, called, got))
    return Messages(zero, np.array([1]), *times, zero, zero)


GRAPH = (
    (0, 0, 0, 0.0, 5.0, 0.0),  # the sender's launch
    (0, 1, -1, 10.0, 100.0, 0.0),  # its device's work
    (0, 1, -1, 200.0, 300.0, 150.0),  # launched after the message
    (1, 2, 0, 130.0, 135.0, 0.0),  # the receiver's next launch
)


def test_a_receiver_goes_on_when_the_sender_s_device_was_done_and_the_data_had_come() -> None:
    edges = edges_of(nodes(*GRAPH), of(sent=20.0, called=40.0, got=120.0))
    assert edges.after.tolist() == [3, 3]
    # The launch ended 15 before the message was sent; the device's work before it ended at 100.
    assert dict(zip(edges.before.tolist(), edges.lag.tolist(), strict=True)) == {0: 45.0, 1: 30.0}
    assert edges.waited.tolist() == [0, 0, 0, 80.0]


def test_work_that_ended_after_the_receiver_went_on_held_nobody_up() -> None:
    late = (*GRAPH[:1], (0, 1, -1, 10.0, 400.0, 0.0), *GRAPH[2:])
    edges = edges_of(nodes(*late), of(sent=20.0, called=40.0, got=120.0))
    assert edges.before.tolist() == [0]


def test_nodes_without_length_at_one_instant_make_no_circle() -> None:
    """Each side's host has one node at 100, and each gets a message of the other's before it."""
    graph = nodes((0, 0, 0, 100.0, 100.0, 0.0), (1, 1, 0, 100.0, 100.0, 0.0))
    sides, zeros = np.array([0, 1]), np.zeros(2, dtype=np.int64)
    at = np.full(2, 100.0)
    assert edges_of(graph, Messages(sides, sides[::-1], at, at, at, zeros, zeros)).after.tolist() == []


def test_work_with_length_that_ends_as_the_receiver_goes_on_held_it_up() -> None:
    graph = nodes((0, 0, 0, 90.0, 100.0, 0.0), (1, 1, 0, 100.0, 100.0, 0.0))
    edges = edges_of(graph, of(sent=100.0, called=50.0, got=100.0))
    assert list(zip(edges.before.tolist(), edges.after.tolist(), strict=True)) == [(0, 1)]


def test_a_message_that_was_waiting_took_what_is_usual_between_its_two_ranks() -> None:
    """Three messages from 0 to 1, and one from 2 to 1 that is far slower."""
    graph = nodes(
        (0, 0, 0, 0.0, 5.0, 0.0), *((1, 1, 0, at, at + 1, 0.0) for at in (31.0, 61.0, 191.0, 400.0))
    )
    sent = np.array([20.0, 40.0, 70.0, 210.0])
    called, got = np.array([10.0, 35.0, 180.0, 205.0]), np.array([30.0, 60.0, 190.0, 390.0])
    source, ones, zeros = np.array([0, 0, 0, 2]), np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    edges = edges_of(graph, Messages(source, ones, sent, called, got, zeros, zeros))
    # The first two took 10 and 20, so 15 is usual. All were sent well after the launch had ended at 5.
    assert edges.lag.tolist() == [15 + 10 + 1, 35 + 20 + 1, 65 + 15 + 1]


Call = tuple[int, int, bool]
"""Rank, step and whether it sends."""


def calls(*made: Call, match: int = -1) -> pd.DataFrame:
    """Return calls in the forward, in order of time."""
    frame = pd.DataFrame(made, columns=["rank", "step", "sends"])
    start = np.arange(len(made), dtype=np.float64)
    return frame.assign(start=start, end=start + 0.5, forward=True, match=match)


STEP_0: tuple[Call, ...] = ((0, 0, True), (1, 0, False))
STEP_1: tuple[Call, ...] = ((0, 1, True), (1, 1, False))
STEP_2: tuple[Call, ...] = ((0, 2, True), (1, 2, False))


@pytest.mark.parametrize(
    ("made", "pairs"),
    [
        ((*STEP_0, *STEP_1), [(0, 1), (2, 3)]),
        ((*STEP_0, *STEP_1, (0, -1, True)), [(0, 1), (2, 3)]),
        ((*STEP_0[1:], *STEP_1, *STEP_2), [(1, 2), (3, 4)]),
        ((*STEP_0, *STEP_1, *STEP_2[:1]), [(0, 1), (2, 3)]),
        ((*STEP_0, *STEP_1[:1], *STEP_2), []),
    ],
    ids=["clean", "outside steps", "first step cut", "last step cut", "whole step contradicts"],
)
def test_only_a_whole_step_speaks_against_an_order(made: tuple[Call, ...], pairs: list[Any]) -> None:
    assert by_order(calls(*made), [(0, 1)]) == pairs


def test_a_send_that_two_receivers_claim_is_given_to_neither() -> None:
    made = calls((0, 0, True), (1, 0, False), (2, 0, False))
    assert by_order(made, [(0, 1)]) == [(0, 1)]
    assert by_order(made, [(0, 1), (0, 2)]) == []


def test_a_receive_that_two_senders_claim_is_given_to_neither() -> None:
    made = calls((0, 0, True), (1, 0, True), (2, 0, False))
    assert by_order(made, [(0, 2)]) == [(0, 2)]
    assert by_order(made, [(0, 2), (1, 2)]) == []


def test_a_match_on_record_pairs_its_two_calls_and_no_others() -> None:
    made = calls(*STEP_0, *STEP_1, *STEP_2).assign(match=[7, 7, 8, -1, -1, 9])
    assert by_match(made) == [(0, 1)]
    assert by_match(calls(*STEP_0)) == []


def test_calls_without_a_match_go_by_order_beside_those_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    every = matched(monkeypatch, steps=2)
    first: list[int] = []

    def one_pair(made: pd.DataFrame) -> list[tuple[int, int]]:
        pairs = by_order(made, [tuple(range(8))])[:1]
        first.extend(pairs[0])
        return pairs

    monkeypatch.setattr(handed_over, "by_match", one_pair)
    assert sorted(matched(monkeypatch, steps=2)) == sorted(every)
    assert len(first) == 2
