"""The end of the headline points to findings of what it blames, and to one whose fix saves something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.headline import idle, moving
from shardtoll.analyzers.headline.advice import (
    WIDTH,
    best_of,
    ends,
    ends_of_both,
    first_of,
    orders,
    room,
    with_advice,
)
from shardtoll.ledger import KINDS, Figure, Finding, Remedy, Where
from shardtoll.ledger.records.finding import Severity


def made(kind: str, saving_ns: int | None, severity: Severity = "warning", remedy: str = "") -> Finding:
    return Finding(
        *(kind, severity, "t", 1_000_000, None, saving_ns, None, 1, (0,)),
        Where(),
        remedy=Remedy(remedy) if remedy else None,
    )


BUBBLE = made("pipeline-bubble", 0, remedy="Use more micro-batches: they shrink the bubble.")


@pytest.mark.parametrize(
    ("findings", "kinds", "place"),
    [
        ([BUBBLE, made("pipeline-imbalance", 9)], (), 1),
        ([BUBBLE, made("pipeline-imbalance", 9)], ("pipeline-bubble", "pipeline-imbalance"), 1),
        ([BUBBLE, made("exposed-communication", 9, "info")], (), 1),
        ([BUBBLE, made("data-stall", None)], (), 1),
        ([BUBBLE, made("data-stall", None, "info")], (), 0),
        ([BUBBLE, made("launch-bound", 9)], ("pipeline-bubble",), 0),
        ([BUBBLE], ("straggler",), None),
    ],
)
def test_a_fix_that_saves_nothing_comes_last(findings: list[Finding], kinds: tuple[str, ...], place: int):
    assert first_of(findings, kinds) == place


def said(text: str, findings: list[Finding], place: int | None, purpose: str = "") -> str:
    return with_advice(text, ends(findings, place, purpose))


def test_the_sentence_names_the_finding_that_it_blames_and_one_with_a_saving():
    late = made("launch-bound", 9, remedy="Replay the step as CUDA graphs.")
    both = "Stages wait; fixing finding 1 saves nothing, so start with finding 2 (launch-bound)"
    assert said("Stages wait", [BUBBLE, late], 0) == both
    assert said("Stages wait", [BUBBLE, late], 1) == "Stages wait; replay the step as CUDA graphs"
    assert (
        said("Stages wait", [BUBBLE], 0)
        == "Stages wait; no finding has a saving; see finding 1 (pipeline-bubble)"
    )
    assert said("Stages wait", [BUBBLE, late], None) == "Stages wait"


def test_with_little_room_no_number_of_another_kind_stands_without_a_purpose():
    text = "Stages wait " + "x" * (WIDTH - 49)
    late = made("launch-bound", 9)
    assert said(text, [BUBBLE, late], 0) == f"{text}; see finding 1 (pipeline-bubble)"
    # The purpose says what a finding of another kind is for, so its number may stand without the kind.
    assert said(text, [late], 0, "to send less, ") == f"{text}; to send less, see finding 1"
    assert room(ends([late], 0, "to send less, ")) == len("to send less, see finding 1") + 3


def test_of_several_causes_the_one_whose_fix_saves_most_is_named():
    stages = ("pipeline-bubble", "straggler")
    bubble, late = made("pipeline-bubble", 1), made("straggler", 9)
    assert best_of([bubble, late], stages) == 1
    assert best_of([made("pipeline-bubble", 9), late], stages) == 0
    assert best_of([bubble, made("host-sync", 50)], stages) == 0
    assert best_of([made("host-sync", 50)], stages) is None


def test_a_late_rank_and_launches_of_one_cause_are_named_together():
    slow = Figure("late_launches_ns", 5, "ns")
    late = replace(made("straggler", 0), figures=(slow,), ranks=(3,))
    findings = [made("launch-bound", 9), made("host-sync", 1), late]
    assert said("Rank 3 is late", findings, 2) == (
        "Rank 3 is late; speed up launches on all ranks (findings 1, 3)"
    )


def test_a_sentence_that_blames_two_things_names_a_finding_of_each():
    findings = [made("exposed-communication", 9), made("host-sync", 9), made("straggler", 9)]
    both = "see findings 1 (exposed-communication) and 3 (straggler)"
    assert ends_of_both(findings, (2, 0)) == (both, "see findings 1 and 3")
    assert ends_of_both(findings, (2, None)) == ends(findings, 2)
    assert ends_of_both(findings, (None, None)) == ()


def test_the_finding_is_that_of_the_rank_blamed():
    of_rank = [replace(made("straggler", 9), ranks=ranks) for ranks in ((5,), (0, 1), (3,))]
    assert first_of(of_rank, ("straggler",), 3) == 2
    assert first_of(of_rank, ("straggler",), 7) is None


@pytest.mark.parametrize(
    ("kind", "purpose"),
    [("sync-every-microbatch", "to send less, "), ("exposed-communication", "to cut their time, ")],
)
def test_slow_transfers_point_to_another_kind_with_its_purpose_only(kind: str, purpose: str):
    other = made("data-stall", 9)
    assert moving.advised([other, made(kind, 9)], moving.SLOW) == (1, purpose)
    assert moving.advised([other, made(kind, 9), made("below-roofline", 9)], moving.SLOW) == (2, "")
    assert moving.advised([other, made("straggler", 9)], moving.SLOW) == (None, "")


def test_reasons_of_idle_time_point_to_their_own_kinds_only():
    assert idle.REASONS["data"][1] == ("data-stall",)
    assert idle.REASONS["launch"][1] == ("launch-bound",)
    assert "straggler" not in idle.ADVISE
    assert set(idle.ADVISE) <= {kind for kind, family in KINDS.items() if family == "schedule"}


def test_only_a_short_order_is_advice_in_words_of_its_own():
    told = replace(made("straggler", 9), remedy=Remedy("Give rank 3 its batch earlier: more workers."))
    assert orders([told], 0) == ("give rank 3 its batch earlier",)
    assert orders([told], 0, "to send less, ") == ("to send less, give rank 3 its batch earlier",)
    assert orders([made("straggler", 9)], 0) == ()
    assert orders([told], None) == ()


def test_needless_broadcasts_lead_over_slow_transfers():
    """They cost on a fast network too, so their remedy is the first thing to do."""
    assert set(moving.HEADS) <= set(moving.MOVING)
    for kind in ("constant-buffers", "needless-barrier"):
        (head, kinds) = moving.clause(None, 0.3, 15.0, [made(kind, 9), made("below-roofline", 9)])  # type: ignore[arg-type]
        assert head.endswith("time, and transfers are slow too")
        assert kinds == (kind,)
