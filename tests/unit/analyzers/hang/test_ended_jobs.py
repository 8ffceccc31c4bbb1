"""Jobs that were killed: their files are final, and the end of a rank is not taken for a cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B, C = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"
BEFORE = [call(number, source=A, step=number - 1) for number in (1, 2, 3)]
PAIR = FlightGroup("pair", (0, 1))


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def waits(rank: int, last: FlightCall, blocked_s: float, **rest: Any) -> RankFlight:
    """Return one of three ranks that was killed in its fourth collective."""
    return flight(rank, [*BEFORE, last], world=3, blocked_s=blocked_s, **{"life": "dead", **rest})


def waiting(**rest: Any) -> FlightCall:
    return call(4, finished_ns=None, **{"source": A, **rest})


def lost(dead: RankFlight, state: Any = "failed") -> RankFlight:
    """Return the rank as it ends if it sees the end of another before its own."""
    raised = {"blocked": None, "blocked_since_ns": None, "raised": dead.blocked}
    return replace(dead, **raised, raised_since_ns=dead.blocked_since_ns, state=state)  # type: ignore[arg-type]


def both_ways(blocked_s: float) -> list[RankFlight]:
    """Return ranks of which 0 waits in a barrier of the pair and 1 and 2 in the world's all_reduce."""
    barrier = waiting(op="barrier", group="pair", place=1, source=B, message_bytes=None)
    return [
        waits(0, barrier, blocked_s, groups=(PAIR,)),
        waits(1, waiting(source=A), blocked_s, groups=(PAIR,)),
        waits(2, waiting(source=A), blocked_s),
    ]


@pytest.mark.parametrize("blocked_s", [0.0, 0.2, 50.0])
def test_what_ranks_disagree_on_needs_no_second(blocked_s: float):
    told = answer(
        *(waits(rank, waiting(message_bytes=32 if rank == 1 else 16), blocked_s) for rank in range(3))
    )
    assert (told.hang, told.why) == (True, "mismatch")
    assert "rank 1 is in all_reduce 4" in told.verdict


def test_a_disagreement_that_ranks_got_past_before_is_none():
    uneven = [call(3, op="all_gather", source=A, message_bytes=16 + rank) for rank in range(3)]
    flights = [
        flight(rank, [*BEFORE[:2], uneven[rank], replace(uneven[rank], number=4, place=4, finished_ns=None)],
               world=3, blocked_s=0.1, life="dead")
        for rank in range(3)
    ]  # fmt: skip
    assert not answer(*flights).hang
    first = [replace(each, calls=(*BEFORE, each.calls[-1])) for each in flights]
    assert answer(*first).why == "mismatch"


@pytest.mark.parametrize("blocked_s", [0.1, 20.0])
def test_a_circle_needs_no_second_either(blocked_s: float):
    told = answer(*both_ways(blocked_s))
    assert (told.hang, told.cycle) == (True, (0, 1))
    assert told.verdict.startswith("Deadlock by order: ")
    assert B in told.verdict


@pytest.mark.parametrize("state", ["failed", "open"])
@pytest.mark.parametrize("sees", [0, 1, 2])
def test_a_rank_that_saw_the_others_end_does_not_hide_the_circle(sees: int, state: Any):
    flights = both_ways(2)
    flights[sees] = lost(flights[sees], state)
    assert (answer(*flights).why, answer(*flights).cycle) == ("order", (0, 1))


def unmatched(blocked_s: float) -> list[RankFlight]:
    """Return ranks of which 1 is in a send to 0, and 0 and 2 in the world's all_reduce."""
    send = waiting(op="send", place=1, root=0, source=B)
    return [waits(rank, send if rank == 1 else waiting(), blocked_s) for rank in range(3)]


@pytest.mark.parametrize("sees", [None, 0, 1, 2])
def test_a_send_that_stood_for_a_second_has_no_peer(sees: int | None):
    flights = unmatched(2)
    if sees is not None:
        flights[sees] = lost(flights[sees])
    told = answer(*flights)
    assert told.why == "no peer"
    assert f"in send to rank 0 (16 B float32) at {B}, and rank 0 has issued no matching recv" in told.verdict


def test_a_send_that_had_just_begun_may_have_returned():
    told = answer(*unmatched(0.2))
    assert (told.hang, told.why) == (False, "slow")


def test_a_rank_that_died_in_a_send_that_had_just_begun_died():
    flights = unmatched(0.2)
    flights[0] = lost(flights[0])
    assert (answer(*flights).why, answer(*flights).divergence) == ("dead", None)


def late(blocked_s: float) -> list[RankFlight]:
    stands = flight(1, BEFORE, world=3, line=C, life="dead", moved_ns=NOW - int(blocked_s * SECOND))
    return [waits(0, waiting(), blocked_s), stands, waits(2, waiting(), blocked_s)]


def test_who_the_others_had_waited_for_before_all_were_killed_is_late_and_did_not_just_die():
    flights = late(50)
    flights[2] = lost(flights[2])
    told = answer(*flights)
    assert told.why == "late"
    assert told.verdict.startswith(f"Rank 1 has not arrived and has been at {C} for 50.0 s")
    fresh = late(3)
    fresh[2] = lost(fresh[2])
    assert answer(*fresh).why == "dead"


@pytest.mark.parametrize(("blocked_s", "why"), [(50, "late"), (3, "dead")])
def test_who_was_killed_after_all_others_had_waited_long_is_late_though_they_all_saw_its_end(
    blocked_s: float, why: str
):
    flights = late(blocked_s)
    flights[0], flights[2] = lost(flights[0]), lost(flights[2])
    told = answer(*flights)
    assert told.why == why
    assert "; ranks 0 and 2 failed in all_reduce 4 of group world" in told.verdict


def aborted(rank: RankFlight, ago_s: float = 5) -> RankFlight:
    """Return the rank as one whose process ended in its collective some time ago, as by torch's time-out."""
    assert rank.heartbeat_ns is not None
    return replace(rank, life="dead", heartbeat_ns=rank.heartbeat_ns - int(ago_s * SECOND))


@pytest.mark.parametrize(("blocked_s", "why"), [(50, "late"), (12, "none")])
def test_ranks_that_were_aborted_after_a_long_wait_waited_for_the_one_that_still_stands(
    blocked_s: float, why: str
):
    """Of 12 s they had waited for 7 as they ended, and the limit is 10."""
    stands = flight(1, BEFORE, world=3, line=C, moved_ns=NOW - 60 * SECOND)
    told = answer(*(aborted(waits(rank, waiting(), blocked_s)) for rank in (0, 2)), stands)
    assert told.why == why
    if why == "late":
        assert told.verdict.startswith(f"Rank 1 has not arrived and has been at {C} for 60.0 s")


@pytest.mark.parametrize(("blocked_s", "why"), [(50, "order"), (12, "dead")])
@pytest.mark.parametrize("first", [0, 1])
def test_an_abort_after_a_long_wait_does_not_hide_the_circle_it_waited_in(
    first: int, blocked_s: float, why: str
):
    flights = [replace(each, life="alive") for each in both_ways(blocked_s)]
    flights[first] = aborted(flights[first])
    assert answer(*flights).why == why


@pytest.mark.parametrize("blocked_s", [0.3, 3.0])
def test_a_wait_that_was_too_short_for_a_hang_is_named_as_that(blocked_s: float):
    told = answer(*late(blocked_s))
    assert (told.hang, told.why, told.findings) == (False, "slow", ())
    assert told.verdict.startswith("No hang: when the job ended, ranks 0 and 2 had waited for ")
    assert (
        f"in all_reduce 4 of group world (16 B float32) at {A} for rank 1, which was at {C};" in told.verdict
    )


@pytest.mark.parametrize("blocked_s", [0.3, 3.0])
def test_a_wait_is_named_at_every_moment_while_the_job_lives(blocked_s: float):
    told = answer(*(replace(each, life="alive") for each in late(blocked_s)))
    assert (told.hang, told.why) == (False, "slow")
    assert told.verdict.startswith("No hang so far: ranks 0 and 2 wait for ")
    assert f"for rank 1, which is at {C}" in told.verdict


def test_short_waits_in_a_circle_are_named_and_no_hang_while_the_job_lives():
    told = answer(*(replace(each, life="alive") for each in both_ways(0.3)))
    assert (told.hang, told.why) == (False, "slow")
    assert told.verdict.startswith("No hang so far: ")


def ended_in_wait(
    waited_s: float,
    usual_s: float,
    after_s: float = 8.0,
    process: Any = "dead",
    hang_after_s: float = 60,
    second_s: float | None = None,
) -> HangAnswer:
    """Return the answer for a rank that ended in a wait, and one that came to it later and saw that.

    `second_s`: how long after it a second rank ended so; None if none did.
    """
    began = NOW - 20 * SECOND
    usual = [
        replace(each, issued_ns=began - 2 * SECOND, finished_ns=began - 2 * SECOND + int(usual_s * SECOND))
        for each in BEFORE
    ]
    ended = flight(
        0, [*usual, waiting(issued_ns=began)], life="dead", blocked=4, blocked_since_ns=began,
        heartbeat_ns=began + int(waited_s * SECOND), hang_after_ns=int(hang_after_s * SECOND),
    )  # fmt: skip
    second = []
    if second_s is not None:
        end_ns = began + int((waited_s + second_s) * SECOND)
        second = [replace(ended, rank=2, path="flight.rank00002.bin", heartbeat_ns=end_ns)]
    came = began + int(after_s * SECOND)
    late = flight(
        1, [*usual, waiting(issued_ns=came)], life=process, state="failed", raised=4, raised_since_ns=came,
        heartbeat_ns=came + SECOND // 100, hang_after_ns=60 * SECOND,
        error="RuntimeError: Connection closed by peer [127.0.0.1]:6070",
    )  # fmt: skip
    world = 2 + len(second)
    groups = (FlightGroup("world", tuple(range(world)), issued_place=4),)
    return answer(*(replace(each, world_size=world, groups=groups) for each in (ended, late, *second)))


@pytest.mark.parametrize("process", ["dead", "alive"])
def test_a_process_that_was_aborted_as_its_wait_counted_as_a_hang_is_no_cause(process: Any):
    told = ended_in_wait(waited_s=6.0, usual_s=0.1, process=process, hang_after_s=5.5)
    assert (told.hang, told.why) == (True, "late")
    assert told.verdict.startswith("Rank 1 came to all_reduce 4 of group world (16 B float32) at train.py:10")
    assert "8.00 s after rank 0, which had ended in that wait" in told.verdict


def test_processes_that_ended_in_a_long_wait_at_about_one_moment_are_no_cause():
    told = ended_in_wait(waited_s=6.0, usual_s=0.1, second_s=1.0)
    assert (told.hang, told.why) == (True, "late")
    assert "8.00 s after ranks 0 and 2, which had ended in that wait" in told.verdict


def test_processes_that_ended_far_from_each_other_were_not_aborted_by_one_cause():
    assert ended_in_wait(waited_s=6.0, usual_s=0.1, after_s=14.0, second_s=7.0).why == "dead"


# Alone, also in a long wait: the system may have killed it for memory while the other wrote a checkpoint.
@pytest.mark.parametrize(("waited_s", "usual_s"), [(6.0, 0.1), (4.0, 0.1), (6.0, 1.0), (6.0, 7.0)])
def test_a_process_that_died_in_a_wait_like_others_is_the_cause(waited_s: float, usual_s: float):
    told = ended_in_wait(waited_s, usual_s)
    assert (told.hang, told.why) == (True, "dead")
    assert told.verdict.startswith("Rank 0 died")


def given_up(beat_s: float, error: str) -> list[RankFlight]:
    """Return two ranks in DDP's backward and past the loop: 0 raises, 1 beats until `beat_s` after that."""
    end = NOW - 10 * SECOND
    first = flight(
        0, BEFORE, world=2, line=A, life="dead", state="failed", error=error, moved_ns=end, heartbeat_ns=end,
        frames=("graph.py:979 (_engine_run_backward)",), stood_since_ns=end - 15 * SECOND,
    )  # fmt: skip
    still = flight(
        1, BEFORE, world=2, line=C, life="dead", moved_ns=end - 15 * SECOND,
        heartbeat_ns=end + int(beat_s * SECOND),
    )  # fmt: skip
    # C++ has issued one more of its group there.
    return [replace(first, groups=(FlightGroup("world", (0, 1), issued_place=4),)), still]


TIMED_OUT = "RuntimeError: unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"


@pytest.mark.parametrize("beat_s", [-0.1, 0.3])
def test_whom_a_launcher_ended_after_the_others_time_was_up_is_late_and_did_not_just_die(beat_s: float):
    told = answer(*given_up(beat_s, TIMED_OUT))
    assert (told.hang, told.why) == (True, "late")
    assert told.verdict.startswith(f"Rank 1 has not arrived and has been at {C}")


def test_who_fell_silent_long_before_the_others_time_was_up_died():
    assert answer(*given_up(-14, TIMED_OUT)).why == "dead"
