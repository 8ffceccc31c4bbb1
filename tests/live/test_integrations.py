"""Adapters under the real trainer libraries: closed forms, steps, bit-equal losses, nothing left behind."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.live import integration_programs as programs
from tests.live import integration_programs_hf as programs_hf
from tests.live.launch import run_ranks
from tests.live.programs import HIDDEN, D

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORLD = 2
BLOCK_BYTES = 2 * D * HIDDEN * 4
GRADIENT_BYTES = 2 * BLOCK_BYTES
LINES = "live/integration_programs"
# Steps of 5 batches; both ranks.
PLAIN, ACCUMULATED = 5, 3
REDUCER = "DistributedDataParallel.reducer"
BUCKET_ORDER = "DistributedDataParallel.bucket_order"
USED_PARAMETERS = "DistributedDataParallel.used_parameters"


def _need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    _need("lightning")
    folder = str(tmp_path_factory.mktemp("lightning"))
    return _merged(run_ranks(programs.of_lightning, WORLD, folder, limit_s=240, foreign=True))


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    _need("accelerate")
    _need("transformers")
    folder = str(tmp_path_factory.mktemp("hugging_face"))
    return _merged(run_ranks(programs_hf.of_hugging_face, WORLD, folder, limit_s=240, foreign=True))


def _merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's results; the report is there alone, and losses of every rank are kept."""
    for key, found in results[0].items():
        others = [result[key] for result in results[1:]]
        assert all(other["rows"] is None for other in others), key
        for part in ("losses", "weights"):
            if part in found:
                found[part] = [found[part], *[other[part] for other in others]]
    return results[0]


def steps_of(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(step["rank"], step["step"]) for step in found["rows"]["steps"]]


def both_ranks(count: int) -> list[tuple[int, int]]:
    return [(rank, step) for rank in range(WORLD) for step in range(count)]


def inside(found: dict[str, Any], step: int, rank: int) -> list[dict[str, Any]]:
    return [c for c in found["rows"]["collectives"] if c["step"] == step and c["rank"] == rank]


def check(found: dict[str, Any], count: int, of_step: Callable[[int], list[tuple[Any, ...]]]) -> None:
    """Every step of both ranks holds exactly these (op, phase, bytes, cause), each with its user's line."""
    assert sorted(steps_of(found)) == both_ranks(count)
    assert "unmatched-collectives" not in found["rows"]["findings"]
    assert found["rows"]["ranks_seen"] == [0, 1]
    for rank, step in both_ranks(count):
        mine = inside(found, step, rank)
        told = [(c["op"], c["phase"], c["message_bytes"], c["caused_by_op"]) for c in mine]
        assert told == of_step(step), (rank, step)
        assert all(c["source"].startswith((LINES, f"tests/{LINES}", "<")) for c in mine), mine


def ddp(step: int) -> list[tuple[Any, ...]]:
    """One all-reduce of every gradient; before the second, DDP's reducer agrees on its one bucket.

    It broadcasts int32: each of four parameters' place and how many there are, then the bucket's size.
    """
    agreed = [("broadcast", "forward", size, BUCKET_ORDER) for size in (4 * (4 + 1), 4)]
    reduced = ("all_reduce", "backward", GRADIENT_BYTES, REDUCER)
    return [*(agreed if step == 1 else []), reduced]


def sigterm_checks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What Lightning broadcasts before every batch, to stop all ranks together."""
    return [c for c in found["rows"]["collectives"] if c["caused_by_op"] == "broadcast"]


@pytest.mark.parametrize("key", ["ddp", "validated", "stopped", "skipped", "failed", "example"])
def test_lightning_ddp_reduces_once_a_step(lightning: dict[str, Any], key: str) -> None:
    # Stopped after, skipped before, and failed in the third batch; the example's data is dealt out.
    count = {"stopped": 2, "skipped": 2, "failed": 2, "example": 3}.get(key, PLAIN)
    check(lightning[key], count, ddp)


def test_lightning_accumulation_makes_one_step_of_several_batches(lightning: dict[str, Any]) -> None:
    def of_step(step: int) -> list[tuple[Any, ...]]:
        asked = ("broadcast", "other", 8, "broadcast")
        *agreed, reduced = ddp(step)
        # Lightning asks before the step's second batch too; the last step has one batch only.
        return [*agreed, *([asked] if step < 2 else []), reduced]

    check(lightning["accumulated"], ACCUMULATED, of_step)
    assert len(sigterm_checks(lightning["accumulated"])) == WORLD * programs.BATCHES


def test_lightning_validation_between_steps_is_outside(lightning: dict[str, Any]) -> None:
    collectives = lightning["validated"]["rows"]["collectives"]
    checks = [c for c in collectives if (c["op"], c["message_bytes"]) == ("all_reduce", 4)]
    assert [c["step"] for c in checks] == [None] * WORLD, "sanity checking came before the audit"
    assert all("validation_step" in c["source"] for c in checks)


def test_lightning_manual_optimization_ends_steps_where_the_optimizer_stepped(
    lightning: dict[str, Any],
) -> None:
    found = lightning["by_hand"]
    assert sorted(steps_of(found)) == both_ranks(2), "the fifth batch's gradients are never used"
    for rank, step in both_ranks(2):
        reductions = [c for c in inside(found, step, rank) if c["op"] == "all_reduce"]
        assert [c["message_bytes"] for c in reductions] == [GRADIENT_BYTES] * 2, "each backward reduces"
        assert all("training_step" in c["source"] for c in reductions)


def test_lightning_fsdp2_gathers_twice_and_scatters_once(lightning: dict[str, Any]) -> None:
    blocks = ["net.0", "net.1"]

    def of_step(step: int) -> list[tuple[Any, ...]]:
        forward = ("all_gather", "forward", BLOCK_BYTES, "FSDP.unshard")
        backward = ("all_gather", "backward", BLOCK_BYTES, "FSDP.unshard")
        scatter = ("reduce_scatter", "backward", BLOCK_BYTES, "FSDP.post_backward")
        return [forward] * 2 + [backward] * 2 + [scatter] * 2

    found = lightning["fsdp2"]
    check(found, PLAIN, of_step)
    for rank, step in both_ranks(PLAIN):
        order = [*blocks, *reversed(blocks), *reversed(blocks)]
        assert [c["module"] for c in inside(found, step, rank)] == order
        assert {c["mesh_dim"] for c in inside(found, step, rank)} == {"data_parallel"}


@pytest.mark.parametrize("key", ["ddp", "accumulated", "fsdp2"])
def test_lightning_losses_are_bit_equal(lightning: dict[str, Any], key: str) -> None:
    assert lightning[key]["losses"] == lightning[f"bare_{key}"]["losses"]
    assert lightning[key]["losses"][0] != lightning[key]["losses"][1], "ranks have data of their own"


def test_lightning_under_its_older_name(lightning: dict[str, Any]) -> None:
    _need("pytorch_lightning")
    check(lightning["older"], PLAIN, ddp)
    assert lightning["older"]["losses"] == lightning["bare_ddp"]["losses"]


@pytest.mark.parametrize(
    ("key", "count"),
    [
        ("accelerate", PLAIN),
        ("accelerate_accumulated", ACCUMULATED),
        ("accelerate_failed", 1),
        ("accelerate_example", ACCUMULATED),
    ],
)
def test_accelerate_reduces_once_a_step(hugging_face: dict[str, Any], key: str, count: int) -> None:
    check(hugging_face[key], count, ddp)


@cache
def _trainers_step(parameters: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """One all-reduce of every gradient, and one of which parameters were used: an int32 each."""
    gradients = ("all_reduce", "backward", 4 * sum(parameters), REDUCER)
    used = ("all_reduce", "backward", 4 * len(parameters), USED_PARAMETERS)
    return [gradients, used]


@pytest.mark.parametrize(
    ("key", "count"),
    [
        ("trainer", PLAIN),
        ("trainer_accumulated", ACCUMULATED),
        ("trainer_stopped", 2),
        ("trainer_failed", 2),
        ("trainer_example", ACCUMULATED),
    ],
)
def test_trainer_reduces_once_a_step(hugging_face: dict[str, Any], key: str, count: int) -> None:
    parameters = tuple(hugging_face["trainer"]["parameters"])
    check(hugging_face[key], count, lambda step: _trainers_step(parameters))
    collectives = hugging_face[key]["rows"]["collectives"]
    modules = {(c["caused_by_op"], c["module"]) for c in collectives if c["step"] is not None}
    # The last gradient to be ready; the map of used parameters is of all modules.
    assert modules == {(REDUCER, "transformer.wte"), (USED_PARAMETERS, None)}


@pytest.mark.parametrize("key", ["accelerate", "accelerate_accumulated", "trainer", "trainer_accumulated"])
def test_hugging_face_losses_are_bit_equal(hugging_face: dict[str, Any], key: str) -> None:
    bare, audited = hugging_face[f"bare_{key}"], hugging_face[key]
    assert audited["losses"] == bare["losses"]
    assert audited.get("weights") == bare.get("weights")
