"""The end of the headline points to a finding whose fix saves something."""

from __future__ import annotations

import pytest

from shardtoll.analyzers.headline.advice import first_of, with_advice
from shardtoll.ledger import Finding, Remedy, Where
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


def test_the_sentence_names_the_first_finding_with_a_saving():
    late = made("launch-bound", 9, remedy="Replay the step as CUDA graphs.")
    assert with_advice("Stages wait", [BUBBLE, late], 0) == "Stages wait; start with finding 2 (launch-bound)"
    assert with_advice("Stages wait", [BUBBLE, late], 1) == "Stages wait; replay the step as CUDA graphs"
    assert with_advice("Stages wait", [BUBBLE], 0) == "Stages wait; no finding has a saving"
