"""Equal-looking values prove nothing; NaN and shards of one seed are findings of their own."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.live import equal_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Told = list[dict[str, Any]]


@cache
def sound(ranks: int) -> dict[str, Told]:
    answer: dict[str, Told] = run_ranks(programs.sound, ranks, limit_s=300)[0]
    return answer


def test_there_are_thirty_and_more() -> None:
    assert len(programs.SOUND) >= 30


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", programs.SOUND)
def test_nothing_is_said_of_sound_programs(name: str, ranks: int) -> None:
    said = sound(ranks)[name]
    equal_work = [one for one in said if one["kind"] == "duplicated-compute"]
    assert [one for one in said if one not in equal_work] == []
    # Replicas of an optimizer are a choice. Ranks that drew equal shards do multiply the same: whether
    # that weighs anything is a matter of how long these few microseconds are next to the step.
    allowed = {("likely", "info"), ("likely", "warning" if name == "equal_megatron_shards" else "info")}
    assert {(one["confidence"], one["severity"]) for one in equal_work} <= allowed


@cache
def faults() -> dict[str, Told]:
    answer: dict[str, Told] = run_ranks(programs.faults, 2, limit_s=200)[0]
    return answer


def of(name: str) -> dict[str, dict[str, Any]]:
    """Return what is said of a program by kind: each kind is said once."""
    told = [one for one in faults()[name] if one["severity"] != "info"]
    by_kind = {one["kind"]: one for one in told}
    assert len(by_kind) == len(told)
    return by_kind


def test_identical_shards_are_no_needless_reduction() -> None:
    said = of("same_start")
    assert list(said) == ["identical-shards"]
    one = said["identical-shards"]
    assert (one["severity"], one["confidence"]) == ("warning", "likely")
    assert one["parameters"] == ["up.weight", "down.weight"]
    assert one["ranks"] == [0, 1]
    assert "along mesh dim tp" in one["title"]


def test_identical_shards_are_found_where_audit_was_given_no_model() -> None:
    said = of("same_start unnamed")
    assert list(said) == ["identical-shards"]
    assert said["identical-shards"]["parameters"] == ["up.weight", "down.weight"]


def test_identical_shards_that_stay_so_are_certain() -> None:
    said = of("same_start checked")
    assert list(said) == ["identical-shards"]
    assert said["identical-shards"]["confidence"] == "certain"
    assert "they still are" in said["identical-shards"]["title"]


WHOLE = ("whole_start", "whole_start unnamed", "whole_start checked", "mended_start checked")


@pytest.mark.parametrize("name", WHOLE)
def test_shards_of_one_whole_are_fine(name: str) -> None:
    assert of(name) == {}


@pytest.mark.parametrize("name", ["overshooting", "overshooting checked"])
def test_values_that_are_not_finite_are_an_error_and_equal_to_nothing(name: str) -> None:
    said = of(name)
    assert list(said) == ["non-finite"]
    one = said["non-finite"]
    assert (one["severity"], one["confidence"]) == ("error", "certain")
    assert one["title"].startswith("the loss")
    assert one["ranks"] == [0, 1]
    if name.endswith("checked"):
        assert one["parameters"] == ["weight", "bias"]


def test_checks_name_the_parameter_and_the_rank() -> None:
    one = of("nan_on_one_rank checked")["non-finite"]
    assert one["ranks"] == [1]
    assert "the gradient of 1.weight" in one["title"]
    assert "from step 1 on" in one["title"]
