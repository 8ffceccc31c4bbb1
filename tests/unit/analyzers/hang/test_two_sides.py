"""Sends and receives whose two sides have both come: other sizes, or other tags."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, RankFlight
from tests.flights import NOW, call, flight

SENDS, RECEIVES, LATER = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def sends(size: int, number: int = 1, **rest: Any) -> FlightCall:
    return call(number, "send", root=1, source=SENDS, message_bytes=size, **rest)


def receives(size: int, number: int = 1, **rest: Any) -> FlightCall:
    return call(number, "recv", root=0, source=RECEIVES, message_bytes=size, **rest)


def side(rank: int, *calls: FlightCall, **rest: Any) -> RankFlight:
    return flight(rank, calls, world=3, **{"blocked_s": 50, **rest})


def waits(rank: int) -> RankFlight:
    return side(rank, call(1, source=LATER, finished_ns=None))


def test_sides_of_other_size_are_named_with_both_lines():
    told = answer(side(0, sends(32, finished_ns=None)), side(1, receives(16, finished_ns=None)), waits(2))
    assert told.why == "mismatch"
    assert told.verdict == (
        f"The size differs: rank 0 is in send to rank 1 (32 B float32) at {SENDS}, and rank 1 is in recv "
        f"from rank 0 (16 B float32) at {RECEIVES}."
    )
    assert told.groups[0].differences[0].what == "message_bytes"


def test_a_receiver_that_crashed_on_the_size_is_no_mere_death():
    crashed = side(1, receives(16, finished_ns=None), life="dead")
    told = answer(side(0, sends(32, finished_ns=None)), crashed, waits(2))
    assert told.why == "mismatch"


def test_a_receive_with_more_room_that_went_well_before_is_no_mismatch():
    before = sends(16), receives(64)
    last = sends(16, 2, finished_ns=None), receives(64, 2, finished_ns=None)
    told = answer(side(0, before[0], last[0]), side(1, before[1], last[1]), waits(2))
    assert told.why == "no peer"


def test_sides_that_have_both_come_may_have_other_tags():
    told = answer(side(0, sends(16, finished_ns=None)), side(1, receives(16, finished_ns=None)), waits(2))
    assert told.why == "no peer"
    assert told.verdict == (
        f"Rank 0 waits in send to rank 1 (16 B float32) at {SENDS}, rank 1 waits in recv from rank 0 (16 B "
        f"float32) at {RECEIVES}: their other sides have come, and their tags may differ; rank 2 waits for "
        f"50.0 s in all_reduce 1 of group world (16 B float32) at {LATER}."
    )
    assert told.findings[0].remedy.text == "Give both sides of this send the same tag and group."


def test_full_records_of_hundreds_of_pairs_take_no_time():
    world, many = 400, 500
    flights = []
    for rank in range(world):
        op, other = ("send", rank + 1) if rank % 2 == 0 else ("recv", rank - 1)
        before = [call(n, op, root=other, source=SENDS, message_bytes=16) for n in range(1, many)]
        size = 16 if op == "send" else 32
        last = call(many, op, root=other, source=SENDS, message_bytes=size, finished_ns=None)
        flights.append(flight(rank, [*before, last], world=world, blocked_s=50))
    begun = time.process_time()
    told = answer(*flights)
    assert time.process_time() - begun < 5
    assert told.why == "mismatch"


@pytest.mark.parametrize("life", ["dead", "alive"])
def test_a_send_too_large_that_ended_its_receiver_is_named_before_the_sender_has_waited_long(life: Any):
    """The other ranks may have waited longer than the sender, and for the rank that died of it."""
    before = [call(1, step=0)]
    rest = {"step": 1, "finished_ns": None, "place": 1}
    sends = [*before, call(2, "send", root=1, message_bytes=32, **rest)]
    receives = [*before, call(2, "recv", root=0, message_bytes=16, **rest)]
    told = diagnose(
        [
            flight(0, sends, world=3, blocked_s=0.9),
            flight(1, receives, world=3, blocked_s=0.9, life=life),
            flight(2, [*before, call(2, step=1, finished_ns=None)], world=3, blocked_s=1.1),
        ],
        NOW,
    )
    assert told.why == ("mismatch" if life == "dead" else "slow"), told.verdict
