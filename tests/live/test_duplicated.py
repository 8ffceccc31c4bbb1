"""Duplicated work on real ranks: exact FLOPs, the right ranks, and choices that are not called errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import duplicate_programs as programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live

WIDTH, CLASSES, ROWS, LAYERS = (programs.WIDTH, programs.CLASSES, programs.ROWS, programs.LAYERS)
HEAD = 2 * ROWS * WIDTH * CLASSES
BLOCKS = LAYERS * 2 * (2 * ROWS * WIDTH * 4 * WIDTH)
NORMS = LAYERS * ROWS * WIDTH * 7
PARAMETERS = sum(parameter.numel() for parameter in programs.Model().parameters())
TOO_MANY = "needless FLOPs per step"

Found = list[dict[str, Any]]


def by_kind(found: Found) -> dict[str, dict[str, Any]]:
    kinds = {finding["title"].split(" is computed")[0]: finding for finding in found}
    assert len(kinds) == len(found)
    return kinds


@pytest.fixture(scope="module")
def pairs() -> dict[str, Found]:
    """Programs on two ranks."""
    return run_ranks(
        programs.all_of,
        2,
        {
            "ddp": ("data_parallel", {}),
            "ddp, micro-batches": ("data_parallel", {"micro": 2}),
            "zero": ("data_parallel", {"zero": True}),
            "same data": ("data_parallel", {"own_data": False}),
            "fsdp": ("sharded", {}),
            "recomputed": ("sharded", {"recompute": True}),
            "tp": ("tensor_parallel", {}),
            "tp, whole head": ("tensor_parallel", {"head": False}),
            "whole": ("whole_dtensors", {}),
            "whole, recomputed": ("whole_dtensors", {"recompute": True}),
            "twice": ("twice_on_one_rank", {}),
            "once": ("twice_on_one_rank", {"mistaken": False}),
            "micro-batches": ("twice_on_one_rank", {"mistaken": False, "micro": 3}),
        },
        limit_s=240,
    )[0]


@pytest.mark.parametrize("name", ["ddp", "ddp, micro-batches"])
def test_replicated_optimizers_are_a_choice(pairs: dict[str, Found], name: str) -> None:
    (finding,) = pairs[name]
    assert finding["severity"] == "info"
    assert finding["op"] == "optimizer.step"
    assert finding["evidence"][TOO_MANY] == PARAMETERS
    assert finding["evidence"]["state of the optimizer on each rank"] == 8 * PARAMETERS


@pytest.mark.parametrize("name", ["zero", "fsdp", "recomputed"])
def test_sharded_programs_repeat_nothing(pairs: dict[str, Found], name: str) -> None:
    assert pairs[name] == []


def test_equal_data_are_said_once(pairs: dict[str, Found]) -> None:
    found = {finding["op"] == "optimizer.step": finding for finding in pairs["same data"]}
    assert len(pairs["same data"]) == 2
    assert "those ranks were given the same data" in found[False]["title"]
    # Forward once, backward twice for each matmul and norm; what the loss and the table take. The loss counts
    # in forward only: its backward begins with one value a row and zeros, whose equality proves nothing.
    loss, table = 5 * ROWS * CLASSES, ROWS * WIDTH
    assert found[False]["evidence"][TOO_MANY] == 3 * (BLOCKS + HEAD + NORMS) + loss + table


def test_tensor_parallel_without_sequence_parallel_is_priced_not_blamed(pairs: dict[str, Found]) -> None:
    kinds = by_kind(pairs["tp"])
    assert set(kinds) == {
        "a choice: normalisation",
        "a choice: the loss over all classes",
        "a choice: the embedding's gradient",
    }
    assert {finding["severity"] for finding in pairs["tp"]} == {"info"}
    norms = kinds["a choice: normalisation"]
    assert norms["evidence"][TOO_MANY] == 3 * NORMS
    assert norms["mesh_dim"] == "tp"


def test_a_head_left_whole_is_found_in_forward_and_backward(pairs: dict[str, Found]) -> None:
    heads = {f["phase"]: f for f in pairs["tp, whole head"] if f["module"] == "head"}
    assert {phase: f["evidence"][TOO_MANY] for phase, f in heads.items()} == {
        "forward": HEAD,
        "backward": 2 * HEAD,
    }
    assert all(f["mesh_dim"] == "tp" for f in heads.values())


def test_replicated_dtensors_are_certain_and_the_layers_one_finding(pairs: dict[str, Found]) -> None:
    found = {(f["phase"], f["module"]): f for f in pairs["whole"] if "choice" not in f["title"]}
    for phase, times in (("forward", 1), ("backward", 2)):
        for name, flops in (("layers.*.up", BLOCKS // 2), ("layers.*.down", BLOCKS // 2), ("head", HEAD)):
            finding = found.pop((phase, name))
            assert finding["evidence"][TOO_MANY] == times * flops
            assert finding["confidence"] == "certain"
    assert not found
    (update,) = [f for f in pairs["whole"] if f["op"] == "optimizer.step"]
    assert (update["mesh_dim"], update["confidence"]) == ("tp", "certain")
    assert update["evidence"][TOO_MANY] == PARAMETERS


def test_recomputing_the_same_on_several_ranks_is_duplicated_too(pairs: dict[str, Found]) -> None:
    again = {
        f["module"]: f["evidence"][TOO_MANY] for f in pairs["whole, recomputed"] if f["phase"] == "recompute"
    }
    # torch stops a recompute once it has what backward needs: the last matmul's output it has not.
    assert again == {"layers.*.up": BLOCKS // 2}


def test_the_same_product_twice_on_one_rank(pairs: dict[str, Found]) -> None:
    (finding,) = [f for f in pairs["twice"] if f["op"] != "optimizer.step"]
    assert finding["title"].startswith("the same work twice on one rank")
    # Of each of two ranks.
    assert finding["evidence"][TOO_MANY] == 2 * (2 * ROWS * WIDTH * WIDTH)
    assert finding["module"] == "first"


@pytest.mark.parametrize("name", ["once", "micro-batches"])
def test_layers_that_begin_as_copies_and_equal_micro_batches_are_no_repetition(
    pairs: dict[str, Found], name: str
) -> None:
    assert [f for f in pairs[name] if f["op"] != "optimizer.step"] == []


def test_two_dimensions_name_the_one_along_which_it_is_repeated() -> None:
    found = run_ranks(programs.all_of, 4, {"both": ("both", {}), "hsdp": ("hybrid", {})})[0]
    heads = {f["phase"]: f for f in found["both"] if f["module"] == "head"}
    # Each dp rank has rows of its own: of the two tp ranks one would do.
    assert {phase: f["evidence"][TOO_MANY] for phase, f in heads.items()} == {
        "forward": 2 * HEAD,
        "backward": 4 * HEAD,
    }
    for finding in heads.values():
        assert finding["mesh_dim"] == "tp"
        assert finding["evidence"]["ranks that did the same"] == "ranks 0-1; ranks 2-3"
    assert all(f["mesh_dim"] == "tp" for f in found["both"])
    assert {f["severity"] for f in found["both"] if f["module"] != "head"} == {"info"}
    (update,) = found["hsdp"]
    assert (update["op"], update["mesh_dim"]) == ("optimizer.step", "replicate")
    assert update["evidence"]["ranks that did the same"] == "ranks 0, 2; ranks 1, 3"
