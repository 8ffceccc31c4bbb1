"""Gradients that nobody reduces, found on real ranks without a check; and programs that only look like it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import unreduced_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Found = list[dict[str, Any]]
HEAD = ["head.weight", "head.bias"]
LATE = ["head.1.weight", "head.1.bias"]


@pytest.fixture(scope="module")
def two() -> dict[str, Found]:
    found: dict[str, Found] = run_ranks(programs.all_cases, 2, limit_s=300)[0]
    return found


@pytest.fixture(scope="module")
def four() -> dict[str, Found]:
    found: dict[str, Found] = run_ranks(programs.on_four, 4, limit_s=300)[0]
    return found


@pytest.mark.parametrize(
    "case",
    [
        *("by hand", "coalesced", "flat", "by hook", "hooked bucket", "frozen", "tied", "unused"),
        *("local SGD", "half local", "divided", "DDP", "DDP, late, by hand", "FSDP2", "FSDP1"),
        *("accumulating", "accumulating, no sync seen"),
        *("hooked bucket, bf16", "DDP in FSDP2", "two calls of many"),
    ],
)
def test_sound_programs_are_silent(two: dict[str, Found], case: str) -> None:
    assert two[case] == []


@pytest.mark.parametrize("case", ["two_d", "hierarchical", "expert groups"])
def test_sound_programs_of_four_are_silent(four: dict[str, Found], case: str) -> None:
    assert four[case] == []


@pytest.mark.parametrize(
    ("case", "parameters"),
    [
        ("by hand, forgotten", HEAD),
        ("coalesced, forgotten", HEAD),
        ("by hook, forgotten", HEAD),
        ("DDP, late", LATE),
        ("DDP, late, inner", LATE),
        ("DDP, ignored", HEAD),
        ("DDP, a part", HEAD),
        ("FSDP2, without the root", HEAD),
        ("FSDP2, ignored", HEAD),
        ("FSDP1, ignored", HEAD),
    ],
)
def test_forgotten_parameters_are_named(two: dict[str, Found], case: str, parameters: list[str]) -> None:
    (one,) = two[case]
    assert sorted(one["parameters"]) == sorted(parameters)
    assert one["severity"] == "warning"
    assert "unreduced_programs.py:" in str(one["source"])
    assert "4 other gradients" in one["title"] or "6 other gradients" in one["title"]


def test_a_list_to_ignore_may_be_meant(two: dict[str, Found]) -> None:
    said = {case: two[case][0]["confidence"] for case in ("DDP, ignored", "FSDP1, ignored", "DDP, late")}
    assert said == {"DDP, ignored": "possible", "FSDP1, ignored": "possible", "DDP, late": "likely"}


def test_the_place_is_the_loop_that_reduces_the_others(two: dict[str, Found]) -> None:
    (one,) = two["by hand, forgotten"]
    assert one["source"].endswith("(averaged)")


@pytest.mark.parametrize(
    ("case", "parameters"),
    [
        ("two_d, a plain layer forgotten", HEAD),
        ("two_d, a sharded layer forgotten", ["trunk.0.weight", "trunk.0.bias"]),
    ],
)
def test_forgotten_over_one_dimension(four: dict[str, Found], case: str, parameters: list[str]) -> None:
    (one,) = four[case]
    assert sorted(one["parameters"]) == sorted(parameters)
