"""When messages were sent and received, where one rank of two knows it better than the other."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.analyses import context_of
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.event_graph import Kind
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.ledger import Collective, Ledger
from tests.unit.analyzers.ledgers import MS, collective, ledger, step

STAGES_MS = (10, 40)
"""How long each of two stages works for a micro-batch."""
MESSAGES = 3


def pipeline(noted_late_ms: int = 0) -> Ledger:
    """Rank 0 sends each micro-batch and waits for all its sends at the end; rank 1 works each of them.

    `noted_late_ms`: by so much the sender's transport notes its beginning after the message has arrived.
    """
    own, works = STAGES_MS
    rows: list[Collective] = []
    free = 0
    received = []
    for number in range(MESSAGES):
        sent = own * (number + 1)
        got = max(sent, free)
        received.append(got)
        rows.append(message(1, "recv", number, issue=free, start=free, end=got, exposed=got - free, peer=0))
        free = got + works
    for number in range(MESSAGES):
        sent = own * (number + 1)
        # The schedule looks at all sends after the last: the last message was received then.
        end = received[-1]
        start = received[number] + noted_late_ms if noted_late_ms else sent
        blocked = end - own * MESSAGES if number == MESSAGES - 1 else 0
        rows.append(
            message(0, "send", number, issue=sent, start=start, end=max(end, start), exposed=blocked, peer=1)
        )
    steps = [
        step(
            0,
            rank,
            duration_ns=lasts * MS,
            exposed_comm_ns=exposed * MS,
            compute_ns=(lasts - exposed) * MS,
            idle_ns=0,
        )
        for rank, lasts, exposed in (
            (0, received[-1], received[-1] - own * MESSAGES),
            (1, free, free - works * MESSAGES),
        )
    ]
    return ledger(rows, steps=steps)


def message(
    rank: int, op: str, seq: int, *, issue: int, start: int, end: int, exposed: int, peer: int
) -> Collective:
    return collective(
        rank=rank,
        op=op,
        seq=seq,
        root=peer,
        wire_bytes=1 << 20,
        phase="forward",
        issue_ns=issue * MS,
        start_ns=start * MS,
        duration_ns=(end - start) * MS,
        exposed_ns=exposed * MS,
    )


def recorded_of(which: Ledger) -> Recorded:
    recorded = recorded_graph(context_of(which))
    assert recorded is not None
    assert recorded.source == "points"
    return recorded


def faster(recorded: Recorded, rank: int, factor: float) -> Draft:
    draft = Draft(recorded)
    draft.duration[recorded.of_kinds((Kind.COMPUTE,)) & (recorded.graph.rank == rank)] *= factor
    return draft


def test_a_pipeline_that_is_not_changed_takes_what_it_took() -> None:
    recorded = recorded_of(pipeline())
    assert recorded.step_times(recorded.replay()) == pytest.approx({(0, 0): 90 * MS, (0, 1): 130 * MS})


def test_a_send_ends_when_it_is_received_and_not_when_its_schedule_looks() -> None:
    draft = faster(recorded_of(pipeline()), 1, 0.25)
    # Both stages take 10 ms then: 3 micro-batches, and one more for the second stage.
    assert draft.lasts_ns() == pytest.approx(40 * MS)


def test_a_message_that_was_issued_before_it_was_received_is_waited_for() -> None:
    recorded = recorded_of(pipeline(noted_late_ms=5))
    # The slow stage is twice as fast: 10 + 3 * 20.
    assert faster(recorded, 1, 0.5).lasts_ns() == pytest.approx(70 * MS)
    # The first stage is slower than the second: what it sends last decides, 3 * 80 + 40.
    assert faster(recorded, 0, 8.0).lasts_ns() == pytest.approx(280 * MS)
