"""One rank ends in a long wait, the other comes only then: the finding says who was late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.ledger.answers.hang import HangAnswer
from shardtoll.ledger.records.flight import RankFlight
from tests.flights import NOW, SECOND, flight
from tests.unit.analyzers.hang.test_diagnose import A, steps, waiting

END = NOW - 10 * SECOND
CAME = END + 2 * SECOND


def killed(wait_s: int, rank: int = 1, world: int = 2, end_ns: int = END) -> RankFlight:
    """A rank that was ended from outside after so long in a collective; a wait of 10 s is a hang."""
    calls = [*steps(A), waiting(4, source=A, issued_ns=end_ns - wait_s * SECOND)]
    made = flight(rank, calls, world=world, life="dead", blocked_s=wait_s + 10)
    return replace(made, heartbeat_ns=end_ns)


def alive(world: int = 2) -> RankFlight:
    return flight(0, [*steps(A), waiting(4, source=A, issued_ns=CAME)], world=world, blocked_s=8)


def failed() -> RankFlight:
    """The same, once gloo has told it that the other one is gone."""
    lost = replace(alive(), state="failed", life="dead", error="RuntimeError: Connection closed by peer")
    return replace(lost, blocked=None, raised=4, raised_since_ns=CAME)


def told(*flights: RankFlight) -> tuple[HangAnswer, dict[str, object], dict[str, object]]:
    answer = diagnose(flights, NOW)
    (finding,) = answer.findings
    return (
        answer,
        {item.label: item.value for item in finding.evidence},
        {figure.name: figure.value for figure in finding.figures},
    )


@pytest.mark.parametrize("other", [alive(), failed()], ids=["alive", "failed"])
def test_a_wait_as_long_as_a_hang_is_the_late_ranks_fault(other: RankFlight):
    answer, evidence, figures = told(other, killed(30))
    assert answer.why == "late"
    assert answer.verdict.startswith("Rank 0 came to all_reduce 4 of group world")
    assert evidence["ranks at fault"] == "rank 0"
    assert (evidence["ranks that came late"], evidence["came later by"]) == ("rank 0", 32 * SECOND)
    assert figures["came_after_ns"] == 32 * SECOND


@pytest.mark.parametrize("other", [alive(), failed()], ids=["alive", "failed"])
def test_after_a_shorter_wait_both_are_named(other: RankFlight):
    answer, evidence, figures = told(other, killed(7))
    assert answer.why == "dead"
    assert answer.verdict.startswith("Rank 1 died")
    assert answer.verdict.endswith(
        "; rank 0 came there 9.00 s after rank 1, and that wait may be why rank 1 ended."
    )
    assert evidence["ranks at fault"] == "rank 1"
    assert (evidence["ranks that came late"], evidence["came later by"]) == ("rank 0", 9 * SECOND)
    assert figures["came_after_ns"] == 9 * SECOND
    assert answer.findings[0].confidence == "likely"


@pytest.mark.parametrize(
    ("first_wait_s", "came", "how", "dead"),
    [(1, "ranks 0 and 1", "15.0 s", "rank 2"), (7, "rank 0", "up to 15.0 s", "ranks 1 and 2")],
    ids=["of one", "of both"],
)
def test_of_several_dead_ranks_each_is_asked_and_named(first_wait_s: int, came: str, how: str, dead: str):
    # So far apart that nothing ended both at once.
    killed_two = [killed(first_wait_s, 1, 3), killed(7, 2, 3, END - 6 * SECOND)]
    answer, evidence, figures = told(alive(3), *killed_two)
    assert (answer.why, evidence["ranks at fault"]) == ("dead", "ranks 1 and 2")
    assert answer.verdict.endswith(
        f"; {came} came there {how} after {dead}, and that wait may be why {dead} ended."
    )
    assert (evidence["ranks that came late"], evidence["came later by"]) == (came, 15 * SECOND)
    assert figures["came_after_ns"] == 15 * SECOND
    assert answer.findings[0].confidence == "likely"


def test_a_rank_that_dies_in_a_usual_wait_has_nobody_to_blame():
    answer, evidence, figures = told(alive(), killed(1))
    assert (answer.why, answer.findings[0].confidence) == ("dead", "certain")
    assert "came there" not in answer.verdict
    assert "ranks that came late" not in evidence
    assert "came_after_ns" not in figures


def test_a_rank_that_was_there_in_time_was_not_late():
    there = replace(alive(), calls=(*alive().calls[:-1], waiting(4, source=A, issued_ns=END - 6 * SECOND)))
    answer, evidence, _ = told(there, killed(7))
    assert answer.why == "dead"
    assert "ranks that came late" not in evidence
