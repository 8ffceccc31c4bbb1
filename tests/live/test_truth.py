"""Gradient and data truth on live ranks: each mistake is named, and what looks alike is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import truth_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two() -> dict[str, Found]:
    found: dict[str, Found] = run_ranks(programs.all_cases, 2, limit_s=300)[0]
    return found


@pytest.fixture(scope="module")
def four() -> dict[str, Found]:
    found: dict[str, Found] = run_ranks(programs.on_four, 4, limit_s=300)[0]
    return found


def of(found: Found, kind: str, parameter: str | None = None) -> Found:
    return [one for one in found if one["kind"] == kind and parameter in (None, one["parameter"])]


@pytest.mark.parametrize(
    "case",
    [
        "hand_right",
        "ddp_right",
        "ddp_micro_batches_as_steps",
        "norm_dtensor_right",
        "norm_plain_right",
        "fsdp2_evaluated",
    ],
)
def test_sound_programs_are_silent(two: dict[str, Found], case: str) -> None:
    assert two[case] == []


@pytest.mark.parametrize("case", ["two_d", "tensor", "experts", "fsdp1", "clipping"])
def test_strategy_samples_are_silent(four: dict[str, Found], case: str) -> None:
    assert four[case] == []


def test_a_parameter_left_out_by_hand(two: dict[str, Found]) -> None:
    found = two["hand_left_out"]
    assert {one["parameter"] for one in found} == {"2.weight"}
    assert {one["kind"] for one in found} == {"unsynced-parameter", "wrong-gradient", "replica-drift"}


def test_a_doubled_reduction(two: dict[str, Found]) -> None:
    (one,) = two["hand_doubled"]
    assert (one["kind"], one["parameter"], one["confidence"]) == ("wrong-gradient", "0.weight", "certain")
    assert "2 times too large" in one["title"]


def test_replicas_that_nothing_reduces(two: dict[str, Found]) -> None:
    wrong = of(two["hand_nothing"], "wrong-gradient")
    assert {"0.weight", "1.weight", "2.weight"} <= {one["parameter"] for one in wrong}
    assert {one["confidence"] for one in wrong} == {"likely"}


def test_reduced_again_after_ddp(two: dict[str, Found]) -> None:
    found = two["ddp_reduced_again"]
    assert {one["kind"] for one in found} == {"wrong-gradient"}
    assert {"0.weight", "2.weight"} <= {one["parameter"] for one in found}


def test_ddp_that_never_synchronises(two: dict[str, Found]) -> None:
    wrong = of(two["ddp_never_synced"], "wrong-gradient")
    assert {one["confidence"] for one in wrong} == {"certain"}
    assert all("no_sync" in one["code"] for one in wrong)
    assert of(two["ddp_never_synced"], "replica-drift", "0.weight")


def test_a_norm_that_counts_replicas(two: dict[str, Found]) -> None:
    (one,) = two["ddp_norm_by_hand"]
    assert "1.414 times the true one" in one["title"]


def test_a_layer_nobody_calls(two: dict[str, Found]) -> None:
    (one,) = two["ddp_unused"]
    assert (one["kind"], one["severity"]) == ("unsynced-parameter", "warning")
    assert one["parameter"].startswith("idle.")


def test_equal_batches_under_fsdp2(two: dict[str, Found]) -> None:
    (one,) = two["fsdp2_same_data"]
    assert (one["kind"], one["ranks"]) == ("duplicated-data", [0, 1])


def test_shards_clipped_by_local_norms(two: dict[str, Found]) -> None:
    (one,) = two["fsdp2_local_norm"]
    assert "by its own norm" in one["title"]


def test_a_layer_added_after_fully_shard(two: dict[str, Found]) -> None:
    assert of(two["fsdp2_late"], "unsynced-parameter", "3.weight")
    assert {one["parameter"] for one in two["fsdp2_late"]} == {"3.weight", "3.bias"}


def test_a_norm_on_local_tokens(two: dict[str, Found]) -> None:
    (wrong,) = of(two["norm_dtensor"], "wrong-gradient")
    assert (wrong["parameter"], wrong["mesh_dim"], wrong["confidence"]) == ("norm", "tp", "certain")
    assert "Partial treated as Replicate" in wrong["title"]
    assert of(two["norm_dtensor"], "replica-drift", "norm")
    (wrong,) = of(two["norm_plain"], "wrong-gradient")
    assert (wrong["parameter"], wrong["confidence"]) == ("norm", "likely")


def test_a_parameter_detached_on_one_rank(two: dict[str, Found]) -> None:
    # Once its values differ, so do the gradients of what comes after it.
    (wrong,) = of(two["detached"], "wrong-gradient", "scale")
    assert wrong["ranks"] == [1]
    assert of(two["detached"], "replica-drift", "scale")


def test_reduced_over_pairs_only(four: dict[str, Found]) -> None:
    wrong = of(four["hand_pairs"], "wrong-gradient")
    assert {one["parameter"] for one in wrong} == {"2.weight"}
    assert "ranks 0-1; ranks 2-3 alone" in wrong[0]["title"]
