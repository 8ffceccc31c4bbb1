"""Right programs that look wrong are left alone, or possibly wrong; their broken twins are found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import sound_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two() -> dict[str, Found]:
    found: dict[str, Found] = run_ranks(programs.all_cases, 2, limit_s=300)[0]
    return found


@pytest.mark.parametrize(
    "case",
    ["local", "post-local", "owners", "cleared to none", "cleared to zero", "skipped"],
)
def test_silent(two: dict[str, Found], case: str) -> None:
    assert two[case] == []


def test_what_records_cannot_tell_is_possible(two: dict[str, Found]) -> None:
    (one,) = two["experts"]
    assert (one["kind"], one["severity"], one["confidence"]) == ("wrong-gradient", "warning", "possible")
    assert "right if each rank's is its own, as an expert" in one["title"]
    assert "module 1 sums over ranks" in one["title"]


def test_a_sum_of_values_that_no_look_follows_is_possible(two: dict[str, Found]) -> None:
    (one,) = two["local by name"]
    assert (one["severity"], one["confidence"]) == ("warning", "possible")
    assert "right if the parameters themselves are averaged, as in local SGD" in one["title"]


@pytest.mark.parametrize("case", ["local, not divided", "local, copied"])
def test_what_averages_nothing(two: dict[str, Found], case: str) -> None:
    assert {one["confidence"] for one in two[case]} == {"likely"}


def test_one_cleared_gradient_is_not_all(two: dict[str, Found]) -> None:
    assert [one["kind"] for one in two["one cleared"]] == ["sync-every-microbatch"]


@pytest.mark.parametrize(
    ("case", "kind", "parameters"),
    [
        ("local, left out", "replica-drift", {"2.weight"}),
        ("owners, left out", "wrong-gradient", {"2.weight"}),
        ("experts, router left out", "wrong-gradient", {"1.router.weight"}),
    ],
)
def test_broken_twins_are_found(two: dict[str, Found], case: str, kind: str, parameters: set[str]) -> None:
    found = [one for one in two[case] if one["confidence"] != "possible"]
    assert {one["parameter"] for one in found} == parameters
    assert {one["parameter"] for one in found if one["kind"] == kind} == parameters


def test_never_averaged(two: dict[str, Found]) -> None:
    found = two["post-local, never averaged"]
    assert {one["confidence"] for one in found} == {"certain"}
    assert {one["kind"] for one in found} == {"wrong-gradient", "replica-drift"}


def test_a_batch_split_by_hand_is_no_expert(two: dict[str, Found]) -> None:
    wrong = {one["parameter"] for one in two["split"] if one["confidence"] == "likely"}
    assert wrong >= {"1.expert.0.weight", "1.expert.2.weight"}


def test_micro_batches_add_up(two: dict[str, Found]) -> None:
    (one,) = two["micro-batches"]
    assert one["kind"] == "sync-every-microbatch"
