"""Jobs in which no rank is known to wait: on an accelerator, before the first collective, in silence."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.dashboards.hang.hang_rows import rank_rows
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B, C = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def on_gpu(rank: int, *calls: FlightCall, still_s: float = 60, **rest: Any) -> RankFlight:
    """Return a rank whose waits return before their collectives are done, in step 1 of two."""
    moved_ns = NOW - int(still_s * SECOND)
    numbered = [
        replace(each, number=number, issued_ns=moved_ns + number, finished_ns=None)
        for number, each in enumerate(calls, start=1)
    ]
    return flight(rank, numbered, waits_block=False, moved_ns=moved_ns, line=C, **rest)


BEFORE = call(1, source=A, step=0)


@pytest.mark.parametrize(
    ("theirs", "why", "words"),
    [
        (
            call(2, source=A, step=1, message_bytes=32),
            "mismatch",
            "The size differs: rank 1 is in all_reduce 2",
        ),
        (
            call(2, source=A, step=1, dtype="int64"),
            "mismatch",
            "The dtype differs: rank 1 is in all_reduce 2",
        ),
        (call(2, "broadcast", source=B, step=1, root=0), "extra", "Rank 1 issued broadcast 2"),
    ],
)
@pytest.mark.parametrize("life", ["alive", "dead"])
def test_ranks_that_disagree_on_an_accelerator_hang_once_they_stand_still(
    theirs: FlightCall, why: str, words: str, life: Any
):
    def job(still_s: float) -> HangAnswer:
        mine = call(2, source=A, step=1)
        return answer(
            on_gpu(0, BEFORE, mine, still_s=still_s, life=life),
            on_gpu(1, BEFORE, theirs, still_s=still_s, life=life),
        )

    told = job(60)
    assert (told.hang, told.why) == (True, why)
    assert told.verdict.startswith(words)
    assert told.findings[0].confidence == "likely"
    assert not job(5).hang, "they may still go on"


def test_what_differed_a_step_ago_is_not_what_an_accelerator_is_in():
    uneven = [
        on_gpu(rank, call(1, source=A, step=0, message_bytes=16 + rank), call(2, source=A, step=1))
        for rank in range(2)
    ]
    assert not answer(*uneven).hang


def test_what_differed_in_steps_before_as_well_is_no_hang_on_an_accelerator():
    def job(first_step: int) -> HangAnswer:
        return answer(
            *(
                on_gpu(rank, *(call(step + 1, source=A, step=step, message_bytes=16 + rank)
                               for step in range(first_step, 4)))
                for rank in range(2)
            )
        )  # fmt: skip

    assert not job(1).hang
    assert job(3).why == "mismatch"


def test_128_accelerators_whose_sizes_always_differ_take_no_time():
    calls = [
        [call(n, source=A, step=n // 400, message_bytes=16 + (rank == 5)) for n in range(1, 513)]
        for rank in range(128)
    ]
    flights = [on_gpu(rank, *calls[rank], world=128) for rank in range(128)]
    begun = time.process_time()
    assert answer(*flights).why == "mismatch"
    assert time.process_time() - begun < 10


def test_collectives_of_two_groups_in_another_order_hang_on_an_accelerator():
    groups = [FlightGroup(name, (0, 1), issued_place=1) for name in ("tp", "dp")]
    first, second = (call(2, group=name, place=1, source=A, step=1) for name in ("tp", "dp"))

    def job(*last: FlightCall) -> HangAnswer:
        return answer(
            on_gpu(0, BEFORE, first, second, groups=groups), on_gpu(1, BEFORE, *last, groups=groups)
        )

    told = job(second, first)
    assert (told.hang, told.why) == (True, "order")
    assert told.findings[0].confidence == "likely"
    assert not job(first, second).hang


def test_an_accelerator_that_stands_still_in_agreement_is_not_called_idle():
    told = answer(*(on_gpu(rank, BEFORE, call(2, source=A, step=1)) for rank in range(2)))
    assert not told.hang
    assert told.verdict == (
        f"No rank is behind another. None has issued a collective for 60.0 s (ranks 0 and 1 at {C}). "
        "Work on the device is not done, or the ranks are elsewhere in their programs. "
        "NCCL's flight recorder knows which."
    )


def test_ranks_that_stand_before_their_first_collective_are_named_with_their_lines():
    told = answer(flight(0, [], line=A), flight(1, [], line=B))
    assert not told.hang
    assert told.verdict == (
        "No hang in a collective: all ranks are elsewhere in their programs and have issued none for "
        f"60.0 s; rank 0 at {A}, rank 1 at {B}."
    )
    assert [row[3] for row in rank_rows(told)] == ["none yet", "none yet"]
    fresh = answer(flight(0, [], line=A, moved_ns=NOW - SECOND), flight(1, [], line=B))
    assert fresh.verdict == "No hang: no rank waits for one that has not come (ranks 0 and 1 read)."


def test_who_may_issue_collectives_unseen_is_not_said_to_issue_none():
    seen = flight(0, [BEFORE], line=A)
    unseen = replace(seen, groups=(FlightGroup("world", (0, 1), issued_place=7),))
    engine = ("torch/autograd/graph.py:800 (_engine_run_backward)",)
    there = replace(unseen, rank=1, path="")
    for flights in ((unseen, there), (replace(seen, frames=engine), replace(seen, rank=1, frames=engine))):
        assert answer(*flights).verdict.startswith("No hang: no rank waits")


def test_a_log_does_not_say_that_a_rank_has_issued_nothing():
    told = answer(replace(flight(0, []), source="log"))
    assert rank_rows(told)[0][3] == "unknown"
    unseen = flight(0, [])
    unseen = replace(unseen, groups=(FlightGroup("world", (0, 1), issued_place=7),))
    assert rank_rows(answer(unseen))[0][3] == "unknown"


def test_a_heartbeat_that_stopped_in_a_rank_that_lives_is_told():
    here = flight(0, [BEFORE, call(2, source=A, finished_ns=None)], blocked_s=50)
    there = flight(1, [BEFORE], heartbeat_ns=NOW - 45 * SECOND, pid=4711)
    told = answer(here, there)
    assert told.why == "late"
    assert told.verdict.startswith(
        "Rank 1 has not arrived and has issued nothing since all_reduce 1 of group world (16 B float32) "
        f"at {A} for 60.0 s, and its heartbeat has stopped for 45.0 s, as if code held Python's lock; "
        "rank 0 waits"
    )
    remedy = told.findings[0].remedy
    assert remedy is not None
    assert remedy.text.startswith("Run `py-spy dump --pid 4711`")


@pytest.mark.parametrize(("ago_s", "said"), [(45, True), (5, False)])
def test_a_heartbeat_that_ended_long_before_the_others_need_not_be_a_death(ago_s: int, said: bool):
    here = flight(0, [BEFORE, call(2, source=A, finished_ns=None)], blocked_s=50, life="dead")
    told = answer(here, flight(1, [BEFORE], life="dead", heartbeat_ns=NOW - ago_s * SECOND))
    assert told.why == "dead"
    assert (f" or stood still (its heartbeat ended {ago_s:.1f} s before any other)" in told.verdict) == said


def test_who_fell_silent_in_a_collective_of_all_is_at_fault_and_not_who_was_ended_later():
    silent = flight(
        1, [BEFORE, call(2, source=A)], world=3, life="dead", heartbeat_ns=NOW - 45 * SECOND, line=B
    )
    waits = [
        flight(rank, [BEFORE, call(2, source=A, finished_ns=None)], world=3, blocked_s=50, life="dead")
        for rank in (0, 2)
    ]
    last = replace(
        waits[1], state="failed", blocked=None, blocked_since_ns=None, raised=2, error="closed by peer"
    )
    told = answer(waits[0], silent, last)
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 1 died")


def test_a_stopped_rank_is_not_said_to_wait_for_itself():
    flights = [
        flight(rank, [BEFORE, call(2, source=A, finished_ns=None)], world=3, blocked_s=50)
        for rank in range(3)
    ]
    flights[1] = replace(flights[1], life="stopped")
    told = answer(*flights)
    assert told.why == "stopped"
    assert "; ranks 0 and 2 wait for 50.0 s" in told.verdict


def test_backwards_that_were_killed_after_a_long_wait_waited_for_who_stands_elsewhere():
    engine = ("torch/autograd/graph.py:800 (_engine_run_backward)",)
    ahead = (FlightGroup("world", (0, 1, 2), issued_place=5),)

    def job(still_s: int) -> HangAnswer:
        moved_ns = NOW - still_s * SECOND
        here = flight(0, [BEFORE], world=3, frames=engine, line=A, life="dead", moved_ns=moved_ns)
        late = flight(1, [BEFORE], world=3, line=C, life="dead", moved_ns=moved_ns)
        error = "RuntimeError: Connection closed by peer"
        failed = flight(2, [BEFORE], world=3, life="dead", state="failed", error=error, moved_ns=NOW)
        return answer(replace(here, groups=ahead), late, replace(failed, groups=ahead))

    assert job(60).why == "late"
    assert job(60).verdict.startswith(f"Rank 1 has not arrived and has been at {C} for 60.0 s")
    assert job(3).why == "dead"


@pytest.mark.parametrize(
    "error",
    [
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
    ],
)
def test_who_lost_the_others_is_not_at_fault(error: str):
    died = flight(0, [BEFORE], world=3, life="dead", line=C, heartbeat_ns=NOW - SECOND)
    lost = [
        flight(rank, [BEFORE], world=3, life="dead", state="failed", error=error, line=B) for rank in (1, 2)
    ]
    told = answer(died, *lost)
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 0 died")


@pytest.mark.parametrize("noticed", [False, True])
def test_of_a_rank_that_died_in_the_collective_and_one_that_had_not_come_either_may_be_first(noticed: bool):
    """A transport that gets more bytes than it asked for crashes the process that waits."""
    last = call(2, source=A, finished_ns=None)
    ended: dict[str, Any] = {"world": 3, "life": "dead"}
    crashed = flight(0, [BEFORE, last], blocked_s=0, **ended)
    here = flight(1, [BEFORE], line=B, moved_ns=NOW, **ended)
    lost = replace(
        flight(2, [BEFORE, last], blocked_s=0, **ended),
        state="failed",
        blocked=None,
        raised=2,
        error="RuntimeError: closed by peer",  # type: ignore[arg-type]
    )
    told = answer(replace(lost, rank=0, path="") if noticed else crashed, here, lost)
    assert told.why == "dead"
    assert told.verdict.startswith("Rank 1 died")
    assert "for 0 ns" not in told.verdict
    assert told.verdict.endswith("; rank 0 died too, and which died first is unknown.") is not noticed
    assert told.findings[0].confidence == ("certain" if noticed else "likely")


def test_sends_and_receives_of_a_ring_are_told_one_by_one():
    ring = [
        flight(rank, [BEFORE, call(2, "recv", place=1, root=(rank + 1) % 3, source=B, finished_ns=None)],
               world=3, blocked_s=50)
        for rank in range(3)
    ]  # fmt: skip
    told = answer(*ring)
    assert told.why == "cycle"
    assert [(stand.waiting, stand.missing) for stand in told.groups] == [
        ((0,), (1,)),
        ((1,), (2,)),
        ((2,), (0,)),
    ]


def test_the_first_divergence_of_splits_is_the_rank_that_the_verdict_names():
    flights = [
        flight(rank, [BEFORE, call(2, "all_to_all", source=B, finished_ns=None, received_bytes=24,
                                   message_bytes=36 if rank == 1 else 24)], world=3, blocked_s=50)
        for rank in range(3)
    ]  # fmt: skip
    told = answer(*flights)
    assert "rank 1 sends 36 B and expects 24 B" in told.verdict
    assert told.divergence is not None
    assert (told.divergence.rank, told.divergence.others, told.divergence.certain) == (1, (0, 2), True)
