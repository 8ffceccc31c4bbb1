"""Loops over parameters, one line and several sizes: who left one out, and whose size is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, RankFlight
from tests.flights import NOW, call, flight

SIZES = (256, 32, 64)
"""Bytes of the three parameters whose gradients one line reduces in each step."""


def steps(sizes: Sequence[Sequence[int]]) -> list[FlightCall]:
    """Return calls of these bytes, step by step; the last one is not finished."""
    calls: list[FlightCall] = []
    for step, each in enumerate(sizes):
        for size in each:
            calls.append(call(len(calls) + 1, message_bytes=size, step=step))
    last = calls.pop()
    return [*calls, call(last.number, message_bytes=last.message_bytes, step=last.step, finished_ns=None)]


def job(*ranks: Sequence[Sequence[int]]) -> HangAnswer:
    flights: list[RankFlight] = [
        flight(rank, steps(sizes), world=len(ranks), blocked_s=20) for rank, sizes in enumerate(ranks)
    ]
    return diagnose(flights, NOW, None)


USUAL = [SIZES, SIZES]


@pytest.mark.parametrize(
    ("right", "odd", "why", "verdict"),
    [
        # Rank 1 leaves out the step's last one, and is a step further on.
        ([*USUAL, SIZES], [*USUAL, (256, 32), (256,)], "skipped", "Rank 1 skipped all_reduce 9"),
        # It leaves out one in the middle: both are in one step.
        ([*USUAL, (256, 32)], [*USUAL, (256, 64)], "skipped", "Rank 1 skipped all_reduce 8"),
        # It issues the first one twice.
        ([*USUAL, (256, 32)], [*USUAL, (256, 256)], "extra", "Rank 1 issued all_reduce 8"),
        # Its size is one that no step had: no parameter was left out.
        ([*USUAL, (256, 32)], [*USUAL, (256, 48)], "mismatch", "The size differs: rank 1"),
    ],
)
def test_of_two_ranks_the_odd_one_is_named(
    right: list[Sequence[int]], odd: list[Sequence[int]], why: str, verdict: str
) -> None:
    told = job(right, odd)
    assert (told.hang, told.why) == (True, why)
    assert told.verdict.startswith(verdict)


def test_sizes_that_are_others_in_each_step_are_a_mismatch() -> None:
    told = job([(256, 40), (192, 56), (128, 72)], [(256, 40), (192, 56), (128, 80)])
    assert told.why == "mismatch"


@pytest.mark.parametrize("earlier", [2, 0])
def test_one_of_four_that_issues_one_more_is_named_also_in_the_first_step(earlier: int) -> None:
    before = [SIZES] * earlier
    told = job(*([[*before, SIZES, (256,)]] * 3), [*before, (*SIZES, 64)])
    assert told.why == "extra"
    assert told.verdict.startswith(f"Rank 3 issued all_reduce {3 * earlier + 4}")


def test_of_two_ranks_in_their_first_step_the_one_ahead_is_not_certain() -> None:
    told = job([SIZES], [(256, 32), (256,)])
    assert told.why == "skipped"
    assert told.divergence is not None
    assert not told.divergence.certain


def cut(first: int, *ranks: Sequence[Sequence[int]]) -> HangAnswer:
    """Return the answer if the records have lost the calls before one."""
    flights = [flight(rank, steps(sizes), world=len(ranks), blocked_s=20) for rank, sizes in enumerate(ranks)]
    return diagnose([replace(each, calls=each.calls[first - 1 :]) for each in flights], NOW, None)


def test_a_step_whose_beginning_is_lost_does_not_say_that_later_ones_have_more() -> None:
    loop = (256, 64, 64)
    told = cut(3, [loop, loop], [loop, (256, 64), (256,)])
    assert told.why == "skipped"
    assert told.verdict.startswith("Rank 1 skipped all_reduce 6")
    assert told.findings[0].confidence == "likely"
    assert cut(2, [(64, 64, 32), (64, 32)], [(64, 64, 32), (64, 64)]).why == "mismatch"


def test_a_step_whose_beginning_is_lost_says_how_many_it_had_at_least() -> None:
    loop = (256, 64, 64)
    assert cut(2, [loop, loop], [loop, (256, 64), (256,)]).why == "skipped"
    assert cut(3, [loop, loop, loop], [loop, loop, (256, 64), (256,)]).why == "skipped"


@pytest.mark.parametrize("many", [700, 5])
def test_most_ranks_decide_who_left_one_out_also_if_earlier_steps_had_fewer(many: int) -> None:
    """Three of four issue a metric twice in this step; the record may have lost the rest."""
    usual = [*[64] * (many - 1), 8]

    def rank_of(rank: int, last: Sequence[Sequence[int]]) -> RankFlight:
        nth: Counter[tuple[int | None, int | None]] = Counter()
        counted = []
        for each in steps([usual, usual, *last]):
            nth[each.step, each.message_bytes] += 1
            now = nth[each.step, each.message_bytes]
            most = usual.count(each.message_bytes or 0) if each.step else None
            counted.append(replace(each, nth_in_step=now, most_in_step=most))
        return flight(rank, counted[-300:], world=4, blocked_s=20)

    told = diagnose([rank_of(rank, [[*usual, 8]] if rank < 3 else [usual, [64]]) for rank in range(4)], NOW)
    assert told.divergence is not None
    assert (told.divergence.what, told.divergence.rank) == ("skipped", 3)


def test_counts_of_earlier_steps_alone_are_never_certain() -> None:
    told = job([*USUAL, (*SIZES, 64)], [*USUAL, SIZES, (256,)])
    assert told.divergence is not None
    assert (told.divergence.what, told.divergence.rank, told.divergence.certain) == ("extra", 0, False)
