"""Findings that a user asks for by number, range or kind."""

from __future__ import annotations

import pytest

from shardtoll.ledger import UsageError
from shardtoll.ledger.report.asked import asked
from tests import sample_reports

BILL = sample_reports.report().findings
THERE = (
    "give 1 to 3, or one of wrong-gradient, implicit-redistribute, latency-bound; several with commas, as 1,3"
)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), ()),
        (("2",), (2,)),
        (("3,1",), (3, 1)),
        (("3", "1"), (3, 1)),
        (("1-3",), (1, 2, 3)),
        ((" 2 , latency-bound,",), (2, 3)),
        (("latency-bound", "1-3"), (3, 1, 2)),
        (("2", "implicit-redistribute", "2"), (2,)),
    ],
)
def test_several_are_given_in_any_form(words: tuple[str, ...], numbers: tuple[int, ...]):
    assert asked(words, BILL) == numbers


@pytest.mark.parametrize("word", ["0", "4", "3-4", "3-2", "-1", "straggler", "1.0", "٣", "9" * 40])
def test_one_that_is_not_there_is_named_with_what_there_is(word: str):
    with pytest.raises(UsageError) as raised:
        asked(["1", word], BILL, "runs/a")
    assert str(raised.value) == f"runs/a has no finding {word!r}: {THERE}"
    with pytest.raises(UsageError, match=f"^there is no finding {word}: the bill is empty$"):
        asked([word], ())


@pytest.mark.parametrize("empty", ["", " ", ",", " , "])
def test_nothing_between_commas_is_no_finding(empty: str):
    with pytest.raises(UsageError, match=r"^there is no finding '': give 1 to 3"):
        asked([empty], BILL)
