"""Needless collectives found on real ranks, with exact bytes, and nothing on their sound twins."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.live import needless_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

WHOLE = programs.WHOLE
FOUND = {
    "gather_cut": ("gathered, then cut again", WHOLE),
    "gather_list_cut": ("gathered, then cut again", WHOLE),
    "reduce_cut": ("a reduce_scatter would do", WHOLE),
    "reduce_async_cut": ("a reduce_scatter would do", WHOLE),
    "dtensor_reduce_cut": ("a reduce_scatter would do", WHOLE),
    "cut_gathered": ("had sliced just before", WHOLE),
    "cut_gathered_columns": ("had sliced just before", WHOLE),
    "cut_summed": ("the all_reduce before had given already", WHOLE),
    "there_and_back": ("gave back", WHOLE),
    "reduced_twice": ("had made equal on all ranks", WHOLE),
}
SOUND = (
    "gather_used",
    "reduce_used",
    "dtensor_scattered",
    "cut_changed_gathered",
    "there_work_back",
    "metrics_reduced",
    # Ranks of one seed hold equal values, which proves nothing about those of another run.
    "cut_by_hand",
    "equal_reduced",
)


@cache
def once(ranks: int) -> dict[str, Any]:
    answer: dict[str, Any] = run_ranks(programs.once, ranks, [*FOUND, *SOUND])[0]
    return answer


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FOUND)
def test_it_is_found(name: str, ranks: int) -> None:
    words, size = FOUND[name]
    told = once(ranks)[name]
    (finding,) = told["findings"]
    assert finding["kind"] == "redundant-collective"
    assert words in finding["title"]
    assert finding["bytes"] == size
    assert "needless_programs.py" in finding["source"]
    assert "capture-stopped" not in told["stopped"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SOUND)
def test_its_sound_twin_is_not(name: str, ranks: int) -> None:
    assert once(ranks)[name]["findings"] == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_used_are_exact(ranks: int) -> None:
    used = {name: told["used"] for name, told in once(ranks).items()}
    share = WHOLE // ranks
    for name in ("gather_cut", "gather_list_cut", "reduce_cut", "reduce_async_cut"):
        assert used[name] == [share] * ranks, name
    for name in ("gather_used", "reduce_used", "cut_by_hand", "equal_reduced"):
        assert used[name] == [WHOLE] * ranks, name
    assert used["dtensor_scattered"] == [share] * ranks


@cache
def accumulated(steps_are: str) -> dict[str, Any]:
    answer: dict[str, Any] = run_ranks(programs.accumulated, 2, list(programs.WRAPPERS), steps_are)[0]
    return answer


@pytest.mark.parametrize("wrapper", programs.WRAPPERS)
@pytest.mark.parametrize("steps_are", ["optimizer", "micro-batch"])
def test_gradients_reduced_on_every_micro_batch(wrapper: str, steps_are: str) -> None:
    found = accumulated(steps_are)
    findings = [f for f in found[f"{wrapper} bad"]["findings"] if f["kind"] == "sync-every-microbatch"]
    per_step = (programs.MICRO_BATCHES - 1) * programs.GRADIENT_BYTES
    if steps_are == "micro-batch":
        per_step //= programs.MICRO_BATCHES
    assert sum(f["bytes"] for f in findings) == pytest.approx(per_step, abs=1)
    assert all("2 of 3 are needless" in f["title"] for f in findings)
    assert found[f"{wrapper} good"]["findings"] == []


def test_two_models_in_one_step_are_no_micro_batches() -> None:
    assert run_ranks(programs.several_models, 2)[0]["findings"] == []
