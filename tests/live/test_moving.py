"""Watched steps of programs that do something else each time: as a survey has them, or unknown."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from shardtoll.ledger.records import ddp_causes
from tests.live import moving_programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

SEQ = moving_programs.SAID.index("seq")
CAUSE = moving_programs.SAID.index("caused_by_op")
BY_COUNT = ("two_models", "wrapped_anew")
"""Programs whose collectives C++ issues: a step unlike those surveyed is counted, its rows are missing.

All but those of DDP's constructor, whose call is seen in watched steps too.
"""


@cache
def found() -> dict[str, Any]:
    answer: dict[str, Any] = run_ranks(moving_programs.both_levels, 2)[0]
    return answer


@pytest.mark.parametrize("name", sorted(moving_programs.PROGRAMS))
def test_a_watched_step_says_what_a_survey_says_of_it(name: str) -> None:
    surveyed, mixed = found()[name]["survey"], found()[name]["schedule"]
    assert "watch" in mixed["levels"]
    assert surveyed["off"] == []
    for step, (truth, told) in enumerate(zip(surveyed["said"], mixed["said"], strict=True)):
        if name in BY_COUNT and step in mixed["off"]:
            assert told == [row for row in truth if row[CAUSE] == ddp_causes.SETUP]
            continue
        if name == "a_group_made_anew":
            # Every group has numbers of its own.
            truth, told = ([row[:SEQ] for row in rows] for rows in (truth, told))
        assert told == truth, f"step {step}, {mixed['levels'][step]}"
    if name not in BY_COUNT:
        assert mixed["off"] == []
    assert len(mixed["off"]) < moving_programs.STEPS / 2


def test_nobody_waits_for_a_collective_longer_than_it_takes() -> None:
    assert found()["awaited_later"]["schedule"]["longer"] == []
