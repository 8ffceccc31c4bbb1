"""Ranks that an exception of their own ended in a collective, and ranks that came after others gave up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B = "train.py:10 (step)", "train.py:20 (read)"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13724"
TIMED_OUT = "RuntimeError: Timed out waiting 2000ms for recv operation to complete"
WORKER = "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 3"
SUCCESS = [call(1, source=A, step=0)]


def answer(*flights: RankFlight, after_s: int = 20) -> HangAnswer:
    return diagnose(flights, NOW, after_s * SECOND)


def raised(rank: int, error: str | None, *, came_s: float = 0, ended_s: float = 2, **rest: Any) -> RankFlight:
    """Return a rank that an exception ended in its second collective; times since ten seconds ago."""
    begin = NOW - 10 * SECOND
    issued, ended = begin + int(came_s * SECOND), begin + int(ended_s * SECOND)
    fields = {"state": "failed", "error": error, "heartbeat_ns": ended, "life": "dead", "raised": 2, **rest}
    return flight(
        rank,
        [*SUCCESS, call(2, source=A, step=1, issued_ns=issued, finished_ns=None)],
        world=3,
        raised_since_ns=issued,
        **fields,
    )


def missing(rank: int, **rest: Any) -> RankFlight:
    """Return a rank that has not come to the second collective."""
    return flight(rank, SUCCESS, world=3, line=B, moved_ns=NOW - 10 * SECOND, **rest)


def test_an_exception_of_its_own_in_a_collective_is_the_cause():
    told = answer(raised(0, CLOSED), raised(1, WORKER, line=B), raised(2, CLOSED))
    assert told.why == "failed"
    assert told.verdict.startswith("Rank 1 failed with RuntimeError: DataLoader worker")
    assert B in told.verdict


def test_an_exception_of_its_own_in_a_collective_that_others_have_not_come_to_is_the_cause():
    told = answer(missing(0), raised(1, WORKER, line=B), missing(2))
    assert told.verdict.startswith("Rank 1 failed with RuntimeError: DataLoader worker")


def test_a_rank_that_a_signal_ended_after_it_had_waited_for_long_was_hung():
    ended = raised(1, "Preempted: SIGTERM", ended_s=9)
    told = answer(missing(0, life="alive"), replace(ended, hang_after_ns=5 * SECOND), missing(2), after_s=5)
    assert told.verdict.startswith("Ranks 0 and 2 have not arrived")


def test_of_ranks_that_are_interrupted_while_one_is_late_the_late_one_is_at_fault():
    told = answer(raised(0, "KeyboardInterrupt"), missing(1), raised(2, CLOSED), after_s=1)
    assert told.why == "late"
    assert told.verdict.startswith("Rank 1 has not arrived")


def test_ranks_that_are_all_interrupted_in_one_collective_have_no_cause_among_them():
    told = answer(*(raised(rank, "KeyboardInterrupt") for rank in range(3)))
    assert told.verdict.startswith("Ranks 0-2 failed with KeyboardInterrupt")


@pytest.mark.parametrize("error", ["RuntimeError: NCCL error: unhandled cuda error", CLOSED, None])
def test_what_a_backend_says_is_no_error_of_the_ranks_own(error: str | None):
    told = answer(raised(0, CLOSED), raised(1, error), raised(2, CLOSED))
    assert not told.verdict.startswith("Rank 1 failed")


def test_a_rank_that_others_gave_up_waiting_for_is_late_however_long_the_limit_is():
    told = answer(raised(0, TIMED_OUT), missing(1), raised(2, TIMED_OUT))
    assert (told.hang, told.why) == (True, "late")
    assert told.verdict.startswith("Rank 1 has not arrived")


@pytest.mark.parametrize(("lived_until_s", "why"), [(5.0, "late"), (0.5, "dead")])
def test_a_killed_rank_was_late_if_it_lived_as_others_gave_up(lived_until_s: float, why: str):
    beat = {"beat_every_ns": SECOND // 4, "heartbeat_ns": NOW - 10 * SECOND + int(lived_until_s * SECOND)}
    told = answer(raised(0, TIMED_OUT), missing(1, life="dead", **beat), raised(2, TIMED_OUT))
    assert told.why == why


def test_a_rank_that_came_after_others_gave_up_is_late():
    late = raised(1, CLOSED, came_s=4, ended_s=4.1)
    told = answer(raised(0, TIMED_OUT), late, raised(2, TIMED_OUT))
    assert (told.why, told.ranks[1].standing) == ("late", "failed")
    assert told.verdict == (
        f"Rank 1 came to all_reduce 2 of group world (16 B float32) at {A} 4.00 s after ranks 0 and 2, "
        "which had given up; its last collective before was all_reduce 1 of group world (16 B float32) "
        f"at {A}."
    )
    assert "raise `timeout=`" in told.findings[0].remedy.text


def test_ranks_that_came_together_and_timed_out_blame_nobody_for_being_late():
    together = [raised(rank, TIMED_OUT, came_s=rank / 10) for rank in range(3)]
    assert answer(*together).why == "failed"
    assert answer(*(replace(each, state="open", error=None) for each in together)).why != "late"


GUARD = "StepTooLong: step took over 60 s on pid "


def waited(rank: int, error: str, for_s: float, ended_ago_s: float = 0, **rest: Any) -> RankFlight:
    """Return a rank that an exception ended after so long in its second collective."""
    return raised(rank, error, came_s=10 - ended_ago_s - for_s, ended_s=10 - ended_ago_s, **rest)


@pytest.mark.parametrize("world", [2, 3])
def test_a_guard_that_ends_a_wait_for_a_late_rank_is_no_cause(world: int):
    """With the limit of 120 s the guard's 60 s are no hang yet; that a rank has not come is."""
    late = flight(0, SUCCESS, world=world, line=B, moved_ns=NOW - 60 * SECOND)
    ended = [
        waited(rank, f"{GUARD}{rank}", 60, rank / 10, hang_after_ns=120 * SECOND) for rank in range(1, world)
    ]
    told = answer(late, *(replace(each, world_size=world, groups=late.groups) for each in ended))
    assert (told.hang, told.why) == (True, "late")
    assert told.verdict.startswith(f"Rank 0 has not arrived and has been at {B} for 60.0 s; rank")
    assert told.findings[0].ranks == tuple(range(world))


def test_a_guard_that_ends_a_wait_for_a_killed_rank_is_no_cause():
    killed = flight(
        0, SUCCESS, world=3, line=B, life="dead", moved_ns=NOW - 90 * SECOND, heartbeat_ns=NOW - 89 * SECOND
    )
    for seconds in (80, 90):
        ended = [waited(rank, GUARD, seconds, hang_after_ns=120 * SECOND) for rank in (1, 2)]
        told = answer(killed, *ended)
        assert told.why == "dead"
        assert told.verdict.startswith("Rank 0 died")


def test_ranks_that_raise_the_same_at_once_were_ended_from_outside():
    """A launcher's SIGTERM comes soon after the last collective; the program raises an exception on it."""
    late = flight(0, SUCCESS, world=3, line=B, moved_ns=NOW - 60 * SECOND)
    ended = [waited(rank, f"Preempted: SIGTERM to {rank}", 1, rank / 10) for rank in (1, 2)]
    assert answer(late, *ended).verdict.startswith("Rank 0 has not arrived")
    assert answer(late, ended[0], replace(ended[1], error="ValueError: bad")).why == "failed"


def test_a_rank_that_came_after_guards_ended_the_wait_of_others_is_late():
    late = raised(0, CLOSED, came_s=9, ended_s=9.1)
    told = answer(late, *(waited(rank, GUARD, 60, 3) for rank in (1, 2)))
    assert told.why == "late"
    assert told.verdict.startswith("Rank 0 came to all_reduce 2 of group world")
    assert "63.0 s after" not in told.verdict
    assert "62.0 s after ranks 1 and 2, which had given up" in told.verdict


@pytest.mark.parametrize(("came_s", "why"), [(1650, "failed"), (1799, "late"), (1810, "late")])
def test_a_rank_that_came_before_others_gave_up_is_not_late(came_s: int, why: str):
    begin = -1_900
    ended = [raised(rank, TIMED_OUT, came_s=begin, ended_s=begin + 1_800) for rank in (0, 2)]
    came = raised(1, CLOSED, came_s=begin + came_s, ended_s=begin + max(came_s, 1_800) + 1)
    assert answer(ended[0], came, ended[1]).why == why


def test_a_rank_of_the_group_that_is_gone_comes_before_one_that_is_late():
    late = raised(1, CLOSED, came_s=4, ended_s=4.1)
    died = replace(raised(2, None), state="closed", raised=None, error=None)
    told = answer(raised(0, TIMED_OUT), late, died)
    assert (told.why, told.findings[0].ranks[-1]) == ("closed", 2)


def test_a_rank_that_failed_before_others_came_is_the_cause_if_they_came():
    """Others may be some seconds late: that they came shows that the job went on."""
    slow = [raised(rank, CLOSED, came_s=8, ended_s=8.1) for rank in (0, 2)]
    told = answer(slow[0], waited(1, WORKER, 5, 3), slow[1])
    assert (told.why, told.verdict[:32]) == ("failed", "Rank 1 failed with RuntimeError:")
