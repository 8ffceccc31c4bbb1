"""Circles whose cause shows by the steps: a collective too many, a send that was left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, call, flight

A, B, C = "train.py:10 (step)", "train.py:20 (step)", "train.py:30 (step)"
WORLD = 3


def pair(place: int, step: int, **rest: object) -> FlightCall:
    return call(1, group="pair", place=place, source=A, step=step, **rest)


def barrier(place: int, step: int, **rest: object) -> FlightCall:
    return call(1, "barrier", place=place, source=B, step=step, message_bytes=None, **rest)


def rank_of(rank: int, *calls: FlightCall, pairs: tuple[int, ...] = (0, 1)) -> RankFlight:
    """Return a rank that is in the last of its calls."""
    made = [call(number, each.op, group=each.group, place=each.place, source=each.source, step=each.step,
                 message_bytes=each.message_bytes, root=each.root)
            for number, each in enumerate(calls, start=1)]  # fmt: skip
    last = made[-1]
    made[-1] = call(last.number, last.op, group=last.group, place=last.place, source=last.source,
                    step=last.step, message_bytes=last.message_bytes, root=last.root,
                    finished_ns=None)  # fmt: skip
    groups = (FlightGroup("pair", pairs),) if rank in pairs else ()
    return flight(rank, made, world=WORLD, blocked_s=50, groups=groups)


def steps(many: int, *, in_pair: bool) -> list[FlightCall]:
    return [
        each
        for step in range(many)
        for each in ([pair(step + 1, step)] if in_pair else []) + [barrier(step + 1, step)]
    ]


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("line", [A, C])
def test_one_collective_more_than_in_any_step_before_is_that_and_no_other_order(odd: int, line: str):
    """Rank `odd` issues the pair's collective twice in step 3; the other pair's rank is in the barrier."""
    before = steps(3, in_pair=True)
    twice = [*before, pair(4, 3), replace(pair(5, 3), source=line)]
    once = [*before, pair(4, 3), barrier(4, 3)]
    members = [rank_of(rank, *(twice if rank == odd else once)) for rank in (0, 1)]
    told = answer(*members, rank_of(2, *steps(3, in_pair=False), barrier(4, 3)))
    assert (told.hang, told.why) == (True, "extra")
    assert told.verdict.startswith(
        f"Rank {odd} issued all_reduce 5 of group pair (16 B float32) at {line} in step 3"
    )
    assert told.findings[0].confidence == "likely"


def test_who_leaves_out_what_most_issue_once_more_is_still_the_odd_one():
    """A collective that only some steps have: three of four ranks issue it, and one goes on."""
    trio = (0, 1, 2)
    before = steps(3, in_pair=True)
    with_it = [*before, pair(4, 3), pair(5, 3)]
    without = [*before, pair(4, 3), barrier(4, 3)]
    told = answer(*(rank_of(rank, *(without if rank == 1 else with_it), pairs=trio) for rank in trio))
    assert told.hang
    assert told.divergence is not None
    assert told.divergence.rank == 1


def test_a_receive_whose_other_side_is_a_step_further_has_no_send():
    before = steps(3, in_pair=False)
    waits = rank_of(0, *before, call(1, "recv", place=4, root=1, source=A, step=3))
    ahead = rank_of(1, *before, call(1, "recv", place=5, root=0, source=C, step=4))
    told = answer(waits, ahead, rank_of(2, *before))
    assert (told.hang, told.why) == (True, "no peer")
    assert told.verdict.startswith("Rank 0 waits for 50.0 s in recv from rank 1 (16 B float32)")
    assert (
        f"rank 1 has issued no matching send: it is in recv from rank 0 (16 B float32) at {C}" in told.verdict
    )
    same = rank_of(1, *before, call(1, "recv", place=5, root=0, source=C, step=3))
    assert answer(waits, same, rank_of(2, *before)).why == "cycle"
