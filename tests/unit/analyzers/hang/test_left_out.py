"""A rank that went on without a collective: told by its steps, by the groups' counts, or by the module."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.analyzers.hang.judging.later_steps import left_out
from shardtoll.analyzers.hang.standing.job import Job
from shardtoll.analyzers.hang.standing.rank import Key
from shardtoll.analyzers.hang.standing.waiting import Wait
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, SECOND, call, flight

A, B = "train.py:10 (step)", "train.py:20 (step)"
CLOSED = "RuntimeError: Connection closed by peer"


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def replicas(rank: int, last_step: int, **rest: Any) -> RankFlight:
    """Return a rank of four, which reduces over its replica in each step but the last, and shards then on."""
    pair = FlightGroup("replicas", (0, 2) if rank in (0, 2) else (1, 3))
    shard = FlightGroup("shards", (0, 1) if rank in (0, 1) else (2, 3))
    calls: list[FlightCall] = []
    for step in range(last_step + 1):
        calls.append(call(len(calls) + 1, "all_gather", step + 1, group="shards", source=A, step=step))
        if step < 2:
            calls.append(call(len(calls) + 1, place=step + 1, group="replicas", source=B, step=step))
    return flight(rank, calls, world=4, groups=(pair, shard), **rest)


def waits_in_replicas(rank: int) -> RankFlight:
    known = replicas(rank, 2)
    last = call(len(known.calls) + 1, place=3, group="replicas", source=B, step=2, finished_ns=None)
    since = NOW - 50 * SECOND
    return replace(known, calls=(*known.calls, last), blocked=last.number, blocked_since_ns=since)


def test_a_rank_in_a_later_step_has_skipped_what_others_wait_in():
    told = answer(*map(waits_in_replicas, (0, 1)), *(replicas(rank, 5, line=B) for rank in (2, 3)))
    assert told.why == "skipped"
    assert told.verdict == (
        f"Rank 2 skipped all_reduce 3 of group replicas (16 B float32) at {B} in step 2 and went on with "
        f"all_gather 4 of group shards (16 B float32) at {A} in step 3; rank 0 is in the skipped one."
    )


def test_a_rank_whose_audit_ended_in_a_later_step_did_not_end_it_early():
    told = answer(*map(waits_in_replicas, (0, 1)), *(replicas(rank, 5, state="closed") for rank in (2, 3)))
    assert told.why == "skipped"
    assert "early" not in told.verdict


def test_a_rank_whose_audit_ended_in_the_same_step_ended_it_early():
    told = answer(*map(waits_in_replicas, (0, 1)), *(replicas(rank, 1, state="closed") for rank in (2, 3)))
    assert told.why == "closed"
    assert "finished early" in told.verdict


def reduced(rank: int, count: int, step: int | None, **rest: Any) -> RankFlight:
    """Return a rank whose reducer issued `count` collectives unseen."""
    known = flight(rank, [call(1, source=A, step=0)], world=3, step=step, **rest)
    return replace(known, groups=(FlightGroup("world", (0, 1, 2), issued_place=count),))


def failed(rank: int, count: int = 8) -> RankFlight:
    return reduced(rank, count, 7, state="failed", error=CLOSED, line=A, life="dead")


def test_who_did_as_many_steps_with_fewer_collectives_did_not_end_early():
    told = answer(failed(0), reduced(1, 7, 7, state="closed"), failed(2))
    assert told.why == "closed"
    assert told.verdict.startswith(
        "Rank 1 finished after as many steps as ranks 0 and 2, but with 1 collective fewer in group "
        "world: it skipped some before; "
    )
    assert told.findings[0].remedy.text.startswith("Issue this collective on every rank")


def test_who_did_fewer_steps_or_no_fewer_collectives_ended_early():
    for count, step in ((7, 6), (8, 7), (7, None)):
        told = answer(failed(0), reduced(1, count, step, state="closed"), failed(2))
        assert told.verdict.startswith("Rank 1 finished early"), (count, step)


def waits_unseen(rank: int, count: int = 8, step: int = 7) -> RankFlight:
    """Return a rank whose backward waits for what C++ has issued."""
    engine = ("torch/autograd/graph.py:800 (_engine_run_backward)",)
    return reduced(rank, count, step, frames=engine, line=A)


def test_who_lacks_what_a_backward_waits_in_unseen_did_not_end_early():
    told = answer(waits_unseen(0), reduced(1, 7, 7, state="closed"), waits_unseen(2))
    assert (told.hang, told.why) == (True, "closed")
    assert (
        "with 1 collective fewer in group world: it skipped some before; ranks 0 and 2 wait" in told.verdict
    )


def test_an_audit_of_one_step_says_nothing_of_who_did_as_many():
    """Without `session.step()` ranks with more batches are in the same step."""
    told = answer(waits_unseen(0, step=0), reduced(1, 7, 0, state="closed"), waits_unseen(2, step=0))
    assert told.verdict.startswith("Rank 1 finished early")


def after_steps(rank: int, ends: int, **rest: Any) -> RankFlight:
    """Return a rank that issues collectives after its last step, as a validation does."""
    calls = [call(number, source=A, step=min(number, 3)) for number in range(1, ends + 1)]
    return flight(rank, calls, world=3, step=3, **rest)


def still(known: RankFlight, unfinished: int = 1) -> RankFlight:
    """Return a rank that waits in the first of so many last collectives, all of which it has issued."""
    ended = len(known.calls) - unfinished
    calls = [
        replace(each, finished_ns=None if each.number > ended else each.finished_ns) for each in known.calls
    ]
    since = NOW - 50 * SECOND
    return replace(known, calls=tuple(calls), blocked=ended + 1, blocked_since_ns=since, moved_ns=since)


@pytest.mark.parametrize("unfinished", [1, 3])
def test_a_validation_that_is_shorter_on_one_rank_skipped_nothing_before(unfinished: int):
    """With async_op a rank issues several that it then waits for."""
    ranks = [still(after_steps(rank, 6 + unfinished), unfinished) for rank in (0, 2)]
    told = answer(ranks[0], after_steps(1, 6, state="closed", life="dead"), ranks[1])
    assert told.why == "closed"
    assert told.verdict.startswith("Rank 1 finished early, after all_reduce 6")
    assert told.findings[0].remedy.text == "Have every rank run the same number of steps."


def test_who_lacks_more_than_others_wait_in_has_skipped_some():
    """A root's broadcasts are through once it has sent them, whoever takes them."""
    ranks = [still(after_steps(rank, 9)) for rank in (0, 2)]
    told = answer(ranks[0], after_steps(1, 6, state="closed"), ranks[1])
    assert told.verdict.startswith("Rank 1 finished after as many steps as ranks 0 and 2, but with 3 ")


@pytest.mark.parametrize("together", [True, False])
def test_hundreds_of_full_records_of_ranks_that_wait_for_many_take_no_time(together: bool):
    """They wait in one group, or each has a group of its own with all of those that they wait for."""
    world, many, half = 600, 500, 300
    calls = [call(number, source=A, step=number // 10) for number in range(1, many)]
    job = Job((flight(rank, calls, world=world, groups=(), line=B) for rank in range(world)), NOW)
    last = call(many, source=B, step=50, finished_ns=None)
    late = tuple(range(half, world))
    waits = {
        rank: Wait(rank, last, Key(("world", ())), many, late if together else (half - 1, *late, rank))
        for rank in range(half)
    }
    begun = time.process_time()
    assert left_out(job, waits, late) is None
    assert time.process_time() - begun < 1


def layers(rank: int, skips: bool) -> RankFlight:
    """Return a rank that gathers three layers from one line; who skips one reduces a place earlier."""
    calls: list[FlightCall] = []
    for step in (0, 1):
        names = [name for name in ("l.0", "l.1", "l.2") if not (skips and step and name == "l.1")]
        for name in names:
            calls.append(call(len(calls) + 1, "all_gather", source=A, step=step, module=name))
        for name in reversed(names):
            calls.append(call(len(calls) + 1, "reduce_scatter", source=A, step=step, module=name))
    waits = calls[:9]
    waits[-1] = replace(waits[-1], finished_ns=None)
    return flight(rank, waits, world=3, blocked_s=50)


def test_a_layer_that_one_rank_skipped_is_named_by_its_module():
    told = answer(layers(0, False), layers(1, True), layers(2, False))
    assert told.why == "skipped"
    assert told.verdict == (
        f"Rank 1 skipped all_gather 8 of group world (16 B float32) at {A}, module l.1 in step 1 and issued "
        f"all_gather 8 of group world (16 B float32) at {A}, module l.2 in its place; "
        "ranks 0 and 2 issued the skipped one."
    )


def test_a_step_that_the_record_has_cut_does_not_make_a_skipped_collective_one_too_many():
    """Each step is A, B, A; of the first one only the last A is on record."""
    first = call(3, place=3, source=A, step=0)
    usual = [call(4, source=A, step=1), call(5, "broadcast", source=B, step=1, finished_ns=None)]
    other = [call(4, source=A, step=1), call(5, source=A, step=1, finished_ns=None)]
    told = answer(
        *(flight(rank, [first, *(other if rank == 1 else usual)], world=3, blocked_s=50) for rank in range(3))
    )
    assert told.why == "skipped"
    assert told.verdict.startswith("Rank 1 skipped broadcast 5")
