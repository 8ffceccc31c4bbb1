"""The first divergence stands below every verdict on a hang whose records hold one, and only there."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.dashboards.hang.hang_rows import divergence_words
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import RankFlight
from tests.flights import NOW, SECOND, flight
from tests.unit.analyzers.hang.test_diagnose import A, B, call, steps, waiting

BELOW = (
    f"first divergence (skipped): rank 1: all_reduce 8 (group world) at {A}, step 4; "
    f"ranks 0, 2: all_reduce 8 (group world) at {B}, step 3"
)


def answer(*flights: RankFlight) -> HangAnswer:
    return diagnose(flights, NOW)


def on_two_lines(**changed: object) -> list[RankFlight]:
    """Ranks of which one is a step further, at another line."""
    others = [*steps(A, B), call(7, source=A, step=3), waiting(8, source=B, step=3)]
    odd = [*steps(A, B), call(7, source=A, step=3), waiting(8, source=A, step=4)]
    made = [flight(rank, others, world=3, blocked_s=200) for rank in (0, 2)]
    return [*made, replace(flight(1, odd, world=3, blocked_s=200), **changed)]


def test_lines_that_differ_are_said_though_no_rank_is_blamed_for_them():
    told = answer(*on_two_lines())
    assert told.why == "unknown"
    assert told.divergence is not None
    assert divergence_words(told) == BELOW
    labels = [item.label for item in told.findings[0].evidence]
    assert labels[-2:] == ["first divergence, rank 1", "first divergence, ranks 0 and 2"]


def test_it_stands_below_a_failure_too():
    told = answer(*on_two_lines(state="failed", life="dead", error="ValueError: x", blocked=None))
    assert told.why == "failed"
    assert divergence_words(told) == BELOW


def test_what_ranks_got_past_is_no_divergence():
    """Sizes differ by design, as in a gather of parts of several sizes; another rank is late."""
    parts = [
        [call(1), call(2, message_bytes=16 << rank), *steps(A, step=1), waiting(6, source=A, step=5)][:limit]
        for rank, limit in ((0, 6), (1, 5))
    ]
    told = answer(
        flight(0, parts[0], blocked_s=200), flight(1, parts[1], moved_ns=NOW - 200 * SECOND, line="data.py:7")
    )
    assert (told.why, told.divergence, divergence_words(told)) == ("late", None, None)


def test_without_a_hang_nothing_is_said_to_differ():
    flights = [replace(each, blocked_since_ns=NOW - SECOND // 2) for each in on_two_lines()]
    told = answer(*flights)
    assert (told.hang, told.divergence) == (False, None)
