"""Heartbeats that stopped: of a rank that ended well, of one that died, and of one whose lock is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B, C = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"
BEFORE = call(1, source=A)
SUB = FlightGroup("sub", (0, 1, 2))


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def in_sub(rank: int, **rest: Any) -> RankFlight:
    """Return a rank that waits in the second collective of the group of ranks 0 to 2."""
    calls = [call(1, source=A, group="sub"), call(2, source=A, group="sub", finished_ns=None)]
    return flight(rank, calls, world=4, groups=(SUB,), **{"blocked_s": 50, **rest})


def silent(**rest: Any) -> RankFlight:
    """Return rank 3, which is not in that group and has given no sign for five minutes."""
    return flight(3, [], world=4, life="dead", heartbeat_ns=NOW - 300 * SECOND, **rest)


def lost(rank: int) -> RankFlight:
    error = "RuntimeError: Connection closed by peer"
    return replace(in_sub(rank, life="dead"), state="failed", blocked=None, raised=2, error=error)


@pytest.mark.parametrize("state", ["closed", "left", "open"])
@pytest.mark.parametrize("life", ["dead", "alive"])
def test_who_ended_before_and_is_in_another_group_is_not_at_fault_for_a_death(state: Any, life: Any):
    died = in_sub(1, life="dead", heartbeat_ns=NOW - 5 * SECOND)
    told = answer(in_sub(0), died, in_sub(2), replace(silent(state=state), life=life))
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 1 died")


@pytest.mark.parametrize("state", ["closed", "left"])
def test_who_ended_before_is_not_at_fault_if_the_network_stalls(state: Any):
    assert answer(in_sub(0), in_sub(1), in_sub(2), silent(state=state)).why == "unknown"


@pytest.mark.parametrize("state", ["closed", "left", "open"])
def test_who_ended_before_is_not_at_fault_if_another_rank_failed_and_the_rest_lost_it(state: Any):
    failed = in_sub(1, blocked_s=None, life="dead", line=B, heartbeat_ns=NOW - SECOND)
    failed = replace(failed, state="failed", error="ValueError: NaN loss")
    told = answer(lost(0), failed, lost(2), silent(state=state))
    assert told.why == "failed"
    assert told.verdict.startswith("Rank 1 failed with ValueError: NaN loss")


def test_who_fell_silent_outside_the_groups_of_the_others_is_named_if_nobody_in_them_failed():
    told = answer(lost(0), in_sub(1, life="dead"), lost(2), silent())
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 3 died")


def test_a_member_that_ended_early_is_at_fault_still():
    closed = flight(1, [call(1, source=A, group="sub")], world=4, groups=(SUB,), life="dead", state="closed",
                    heartbeat_ns=NOW - 300 * SECOND)  # fmt: skip
    assert answer(in_sub(0), closed, in_sub(2)).verdict.startswith("Rank 1 finished early")


def waits(rank: int = 0, world: int = 3, **rest: Any) -> RankFlight:
    return flight(rank, [BEFORE, call(2, source=A, finished_ns=None)], world=world, blocked_s=500, **rest)


@pytest.mark.parametrize("quiet_s", [1, 5, 50])
def test_no_stacks_are_asked_of_a_process_that_is_dead(quiet_s: int):
    ended = {"state": "failed", "blocked": None, "raised": 2, "error": "RuntimeError: closed by peer",
             "raised_since_ns": NOW - 400 * SECOND}  # fmt: skip
    others = [replace(waits(rank, life="dead"), **ended) for rank in (0, 2)]  # type: ignore[arg-type]
    late = flight(1, [BEFORE], world=3, life="dead", line=C, moved_ns=NOW - 400 * SECOND,
                  heartbeat_ns=NOW - quiet_s * SECOND, pid=4711)  # fmt: skip
    told = answer(others[0], late, others[1])
    assert told.why == "late"
    remedy = told.findings[0].remedy
    assert remedy is not None
    assert remedy.text.startswith("Look at the stacks of rank")
    assert "heartbeat" not in told.verdict


@pytest.mark.parametrize("quiet", [1, 2])
def test_of_several_late_ranks_the_one_without_a_heartbeat_is_named(quiet: int):
    lines, since_ns = {1: B, 2: C}, {quiet: NOW - 100 * SECOND}
    late = [
        flight(rank, [BEFORE], world=3, line=line, pid=4710 + rank, heartbeat_ns=since_ns.get(rank, NOW))
        for rank, line in lines.items()
    ]
    told = answer(waits(), *late)
    assert told.why == "late"
    assert told.verdict.startswith(
        f"Ranks 1 and 2 have not arrived: rank 1 has been at {B} for 60.0 s and rank 2 has been at {C} for "
        f"60.0 s, and the heartbeat of rank {quiet} has stopped for 100 s, as if code held Python's lock; "
        "rank 0 waits"
    )
    remedy = told.findings[0].remedy
    assert remedy is not None
    assert remedy.text == (
        f"Run `py-spy dump --pid {4710 + quiet}`: what holds Python's lock keeps rank {quiet} from writing "
        "stacks."
    )


def test_late_ranks_at_one_line_are_told_together_and_no_more_than_three_places_apart():
    same = [flight(rank, [BEFORE], world=3, line=B, heartbeat_ns=NOW - 90 * SECOND * rank) for rank in (1, 2)]
    assert answer(waits(), *same).verdict.startswith(
        f"Ranks 1 and 2 have not arrived and have been at {B} for 60.0 s, and the heartbeat of ranks 1 and 2 "
        "has stopped for up to 180 s"
    )
    apart = [flight(rank, [BEFORE], world=6, line=f"train.py:{rank}") for rank in range(1, 6)]
    told = answer(waits(world=6), *apart)
    assert "rank 3 has been at train.py:3 for 60.0 s and 2 more ranks stand elsewhere; rank 0" in told.verdict
