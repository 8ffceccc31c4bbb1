"""Ranks that ended where no collective of the program shows: `new_group`, backward, DDP's broadcast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B = "train.py:10 (step)", "train.py:20 (step)"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13724"
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for send operation to complete"
STORE = "DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//1//cpu//0/1"
BEFORE = [call(1, source=A, step=0)]
BROADCAST = ("torch/nn/parallel/distributed.py:2363 (_distributed_broadcast_coalesced)",)
BACKWARD = ("torch/autograd/graph.py:979 (_engine_run_backward)",)
MAKES = ("torch/distributed/distributed_c10d.py:5863 (new_group)", A)
BEGAN = NOW - 20 * SECOND
END = BEGAN + 6 * SECOND


def answer(*flights: RankFlight, after_s: float = 60) -> HangAnswer:
    return diagnose(flights, NOW, int(after_s * SECOND))


def stood(rank: int, frames: tuple[str, ...], counted: int = 1, **rest: Any) -> RankFlight:
    """Return one of three ranks that was killed after 6 s in a call of torch's; its group counted so many."""
    fields = {"life": "dead", "line": A, "moved_ns": BEGAN, "stood_since_ns": BEGAN, "heartbeat_ns": END}
    ended = flight(rank, BEFORE, world=3, frames=frames, **{**fields, **rest})
    return replace(ended, groups=(FlightGroup("world", (0, 1, 2), issued_place=counted),))


def failed(ended: RankFlight, error: str) -> RankFlight:
    """Return the rank as an exception ends it: the end of its step is noted as well."""
    end_ns = END + SECOND // 100
    raised = ended.blocked and {"raised": ended.blocked, "raised_since_ns": ended.blocked_since_ns}
    ended = replace(
        ended, state="failed", error=error, moved_ns=end_ns, heartbeat_ns=end_ns, **(raised or {})
    )
    return replace(ended, blocked=None, blocked_since_ns=None)


def reduces(rank: int) -> RankFlight:
    """Return a rank that was killed in an all_reduce to which nobody else came."""
    calls = [*BEFORE, call(2, source=B, step=1, issued_ns=BEGAN, finished_ns=None)]
    since = {"blocked": 2, "blocked_since_ns": BEGAN, "moved_ns": BEGAN, "stood_since_ns": BEGAN}
    return flight(rank, calls, world=3, life="dead", line=B, heartbeat_ns=END, **since)


@pytest.mark.parametrize("error", [CLOSED, TIMED_OUT, None])
@pytest.mark.parametrize("after_s", [3, 60])
def test_a_rank_is_not_blamed_for_an_end_that_came_of_others_waiting_in_new_group(
    error: str | None, after_s: float
):
    makers = [failed(stood(rank, MAKES), STORE) for rank in (0, 2)]
    late = reduces(1) if error is None else failed(reduces(1), error)
    told = answer(makers[0], late, makers[1], after_s=after_s)
    assert (told.hang, told.why) == (True, "late"), told.verdict
    assert told.verdict.startswith("Rank 1 has not called new_group, in which ranks 0 and 2 have been")


def test_a_move_after_the_last_heartbeat_of_a_killed_rank_ends_no_wait():
    """The first rank that a launcher ends closes connections; the others are killed as they notice it."""
    waits = stood(0, BROADCAST, 2, moved_ns=END + SECOND // 100)
    others = [stood(rank, BACKWARD) for rank in (1, 2)]
    told = answer(waits, *others, after_s=3)
    assert (told.hang, told.why) == (True, "late"), told.verdict
    assert told.verdict.startswith("Ranks 1 and 2 have not arrived")
    assert "rank 0 waits for 7.00 s" in told.verdict
    others = [replace(each, moved_ns=END + SECOND // 100) for each in others]
    assert answer(waits, *others, after_s=3).why == "late"
    # One that moved before its last heartbeat had gone on.
    assert not answer(replace(waits, moved_ns=END - SECOND // 100), *others, after_s=3).hang


def makes_alone(*elsewhere: tuple[str, ...]) -> HangAnswer:
    """Return the answer for rank 0 in `new_group`, and others that wait for it with these frames."""
    maker = stood(0, MAKES, life="alive", heartbeat_ns=NOW)
    others = [
        replace(reduces(rank), life="alive", heartbeat_ns=NOW, frames=frames, blocked=2 if frames else None)
        for rank, frames in enumerate(elsewhere, start=1)
    ]
    world = 1 + len(others)
    groups = [
        (FlightGroup("world", tuple(range(world)), issued_place=1 + bool(rank)),) for rank in range(world)
    ]
    flights = [
        replace(each, world_size=world, groups=group)
        for each, group in zip((maker, *others), groups, strict=True)
    ]
    return answer(*flights, after_s=3)


def test_of_several_ranks_that_are_not_in_new_group_none_is_said_to_have_not_called_it():
    told = makes_alone((B,), (B,), (B,))
    assert told.why == "late"
    assert told.verdict.startswith("Rank 0 waits in new_group (has been at ")
    assert ", and none of ranks 1-3 is in it: a member that has not called it holds up" in told.verdict
    assert told.findings[0].confidence == "likely"


def test_a_rank_without_frames_may_be_in_new_group():
    told = makes_alone((B,), (), (B,))
    assert ", and none of ranks 1 and 3 is in it" in told.verdict


def test_a_function_of_the_users_with_the_name_of_new_group_is_none():
    own = stood(0, ("my/groups.py:5 (new_group)", A), life="alive", heartbeat_ns=NOW)
    others = [replace(reduces(rank), life="alive", heartbeat_ns=NOW, frames=(B,)) for rank in (1, 2)]
    told = answer(own, *others, after_s=3)
    assert told.verdict.startswith("Rank 0 has not arrived")


def test_a_rank_that_failed_by_itself_while_others_made_a_group_failed():
    makers = [failed(stood(rank, MAKES), STORE) for rank in (0, 2)]
    own = failed(stood(1, (B,), line=B), "ValueError: no such file")
    told = answer(makers[0], own, makers[1])
    assert told.verdict.startswith("Rank 1 failed with ValueError: no such file")


def test_a_rank_that_died_long_before_others_gave_up_making_a_group_died():
    makers = [failed(stood(rank, MAKES), STORE) for rank in (0, 2)]
    told = answer(makers[0], stood(1, (B,), line=B, heartbeat_ns=BEGAN + SECOND), makers[1])
    assert told.verdict.startswith("Rank 1 died")


@pytest.mark.parametrize("others", [CLOSED, TIMED_OUT, None])
@pytest.mark.parametrize(("first", "after_s"), [(TIMED_OUT, 60), (TIMED_OUT, 3), (CLOSED, 3)])
def test_a_rank_alone_in_a_broadcast_of_ddp_waited_for_the_others(
    first: str, after_s: float, others: str | None
):
    rest = [stood(rank, BACKWARD, line=B) for rank in (1, 2)]
    ended = rest if others is None else [failed(each, others) for each in rest]
    told = answer(failed(stood(0, BROADCAST, counted=2), first), *ended, after_s=after_s)
    assert (told.hang, told.why) == (True, "late"), told.verdict
    assert told.verdict.startswith(f"Ranks 1 and 2 have not arrived and have been at {B}")
    assert "; rank 0 failed in a collective that C++ issued (number 2 of its group)" in told.verdict


def test_a_rank_killed_in_such_a_broadcast_had_waited_too():
    rest = [failed(stood(rank, BACKWARD, line=B), CLOSED) for rank in (1, 2)]
    told = answer(stood(0, BROADCAST, counted=2), *rest, after_s=3)
    assert told.verdict.startswith("Ranks 1 and 2 have not arrived")


def test_a_rank_that_died_in_backward_and_held_nobody_up_for_long_died():
    dead = stood(1, BACKWARD, line=B)
    told = answer(failed(stood(0, BROADCAST, counted=2), CLOSED), dead, failed(stood(2, BACKWARD), CLOSED))
    assert told.verdict.startswith("Rank 1 died")


def test_ranks_that_all_gave_up_where_all_had_come_have_failed():
    told = answer(*(failed(stood(rank, BACKWARD), TIMED_OUT) for rank in range(3)))
    assert (told.hang, told.why) == (True, "failed")
    assert told.verdict.startswith("Ranks 0-2 failed with RuntimeError: Timed out waiting")
