"""Two groups in another order, or one collective too many: what a record of the last calls can tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import FlightCall, FlightGroup, RankFlight
from tests.flights import NOW, call, flight

KEPT = 512
"""Calls that a rank's record holds."""
Step = Sequence[tuple[str, int]]
"""Group and line of each collective."""
TP, DP, LOG = ("tp", 10), ("dp", 30), ("dp", 50)


def rank_of(rank: int, world: int, steps: Sequence[Step]) -> RankFlight:
    """Return a rank that is in the last of its calls, of which the record holds the last ones."""
    calls: list[FlightCall] = []
    places = {"tp": 0, "dp": 0}
    counts = [Counter(made) for made in steps]
    so_far: Counter[tuple[int, tuple[str, int]]] = Counter()
    for number, (step, (group, line)) in enumerate(
        ((step, each) for step, made in enumerate(steps) for each in made), start=1
    ):
        places[group] += 1
        source = f"train.py:{line} (step)"
        so_far[step, (group, line)] += 1
        most = max((count[group, line] for count in counts[:step]), default=0)
        calls.append(
            call(number, group=group, place=places[group], source=source, step=step,
                 nth_in_step=so_far[step, (group, line)], most_in_step=most or None)
        )  # fmt: skip
    calls.append(replace(calls.pop(), finished_ns=None))
    groups = [FlightGroup(name, tuple(range(world))) for name in places]
    return flight(rank, calls[-KEPT:], world=world, blocked_s=50, groups=groups)


def answer(before: Sequence[Step], *last: Step) -> HangAnswer:
    """Return the answer for ranks that end with these steps."""
    return diagnose([rank_of(rank, len(last), [*before, each]) for rank, each in enumerate(last)], NOW)


@pytest.mark.parametrize("many", [100, 300, 520])
@pytest.mark.parametrize("odd", [0, 1])
def test_another_order_is_that_if_a_step_has_more_calls_than_the_record(many: int, odd: int):
    """The odd rank would issue the other group's collective next."""
    step = [TP, *[("tp", 20)] * many, DP]
    told = answer([step] * 4, *([DP] if rank == odd else [TP] for rank in range(2)))
    assert (told.hang, told.why) == (True, "order")
    assert f"rank {odd} issued all_reduce 5 of group dp (16 B float32) at train.py:30" in told.verdict


@pytest.mark.parametrize("many", [200, 300, 400, 510, 700, 3_000])
@pytest.mark.parametrize("first", [False, True])
def test_one_too_many_is_that_also_in_steps_that_the_record_does_not_hold(many: int, first: bool):
    """The record holds the step before this one, or has lost its beginning, or all of it."""
    loop = [("tp", 20)] * many
    begun = [DP, *loop] if first else [*loop, DP]
    told = answer([[*begun, ("tp", 40)]] * 3, [*begun, ("tp", 40)], [*begun, DP])
    assert told.why == "extra"
    assert told.verdict.startswith("Rank 1 issued all_reduce 5 of group dp (16 B float32) at train.py:30")
    assert told.findings[0].confidence == "likely"


@pytest.mark.parametrize(("world", "odd"), [(2, [1]), (4, [2, 3]), (4, [3]), (4, [1, 2, 3])])
def test_a_collective_that_no_step_had_before_may_come_next_on_the_others(world: int, odd: list[int]):
    last = [[LOG] if rank in odd else [TP] for rank in range(world)]
    assert answer([[TP, DP]] * 4, *last).why == "order"


def test_one_that_all_ranks_issued_for_the_first_time_makes_the_next_one_no_extra():
    """All log in this step; then one rank takes the usual collectives in another order."""
    told = answer([[TP, DP, ("tp", 60)]] * 3, [TP, LOG, DP], [TP, LOG, ("tp", 60)])
    assert told.why == "order"


@pytest.mark.parametrize("world", [2, 4])
def test_one_too_many_is_never_certain_whatever_most_ranks_do(world: int):
    last = [[TP, DP, LOG] if rank == 1 else [TP, DP, ("tp", 60)] for rank in range(world)]
    told = answer([[TP, DP, ("tp", 60)]] * 3, *last)
    assert told.why == "extra"
    assert told.divergence is not None
    assert (told.divergence.rank, told.divergence.certain) == (1, False)
    assert told.findings[0].confidence == "likely"
