"""Bubble and imbalance of pipelines from their very first step on, whatever they are called and made by."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import pipeline_programs as programs
from tests.live.abilities import STAGES_NEXT_TO_EACH_OTHER
from tests.live.launch import run_ranks

RANKS = 4


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    outcome: dict[str, Any] = run_ranks(programs.all_pipelines, RANKS)[0]
    return outcome


def of(outcomes: dict[str, Any], name: str) -> dict[str, Any]:
    if name == "zero bubble" and not STAGES_NEXT_TO_EACH_OTHER:
        pytest.skip("this torch runs no such schedule on gloo")
    found: dict[str, Any] = outcomes[name]
    return found


UNEVEN = ("gpipe", "1f1b in capitals", "interleaved", "zero bubble", "traced")


@pytest.mark.parametrize("name", [*UNEVEN, "sliced"])
def test_the_long_stage_and_the_bubble_are_found(outcomes: dict[str, Any], name: str) -> None:
    found = of(outcomes, name)
    slow, title = found["findings"]["pipeline-imbalance"]
    assert slow == ([2, 3] if name == "sliced" else [RANKS - 1]), found
    assert "pipeline-bubble" in found["findings"], found
    assert found["verdict"].startswith("Pipeline stages wait for each other, not for the network"), found
    assert found["loud"] == []
    two = name in ("interleaved", "zero bubble")
    assert ("(2 of the 8 stages)" in title) == two
    assert found["micro_batches"] == (2 * RANKS if two else 4)


@pytest.mark.parametrize("name", [*UNEVEN, "1f1b even", "sliced"])
def test_the_pipelines_ranks_are_in_order_and_their_messages_are_forward_or_backward(
    outcomes: dict[str, Any], name: str
) -> None:
    lines = [[0, 2], [1, 3]] if name == "sliced" else [list(range(RANKS))]
    found = of(outcomes, name)
    assert (found["lines"], found["phases"]) == (lines, ["backward", "forward"])


def test_stages_of_one_length_are_no_imbalance(outcomes: dict[str, Any]) -> None:
    assert "pipeline-imbalance" not in outcomes["1f1b even"]["findings"]


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zero bubble", "traced", "sliced"])
def test_what_sets_a_schedule_up_is_in_the_first_step_and_in_neither_pass(
    outcomes: dict[str, Any], name: str
) -> None:
    assert of(outcomes, name)["set_up"] == ["0:other"]
