"""What `checks=` takes is true, complete and costs the training nothing but time."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from typing import Any

import pytest

from shardtoll.ledger.records.value import SKETCH_COLUMNS
from tests.live import check_programs
from tests.live.check_programs import LEVELS
from tests.live.launch import run_ranks
from tests.live.perturbation_programs import KINDS

pytestmark = pytest.mark.live


# -- the training is the same ----------------------------------------------------------------------


@cache
def together(kinds: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    return run_ranks(check_programs.trials, ranks, list(kinds), limit_s=300)


def trials(kind: str) -> list[dict[str, Any]]:
    return together(("two_d",), 4) if kind == "two_d" else together(KINDS, 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [*KINDS, "two_d"])
def test_bits_random_numbers_collectives_and_compiled_code_are_those_of_a_bare_run(
    kind: str, level: str
) -> None:
    for rank in trials(kind):
        bare, checked = rank[kind]["bare"], rank[kind][level]
        assert {name: checked[name] for name in bare} == bare
    leading = trials(kind)[0][kind][level]
    assert leading["values"]["gradient"] > 0
    # The compiled programs call the model's blocks one by one, never the model.
    unknown = kind.startswith("compiled")
    assert ("input" in leading["values"]) != unknown
    assert [notice[:35] for notice in leading["notices"]] == 2 * unknown * [
        "the inputs of the model are unknown"
    ]
    unseen = level == "watch" and kind == "ddp"
    assert all((issued == recorded) != unseen for issued, recorded in leading["counts"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "compiled in the first step"])
def test_no_mode_sees_an_operator_of_the_checks(kind: str) -> None:
    for rank in trials(kind):
        bare, checked = rank[kind]["operators"]["None"], rank[kind]["operators"]["survey"]
        assert checked == bare


def _of_steps(rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was taken in steps and after them; how the parameters began has no step."""
    began = [row for row in rows["values"] if row["step"] is None]
    assert {row["kind"] for row in began} <= {"parameter", "shard"}
    return [row for row in rows["values"] if row["step"] is not None]


def test_nothing_is_installed_that_was_not_asked_for() -> None:
    nothing = {"optimizer": 0, "model": 0, "norm": True, "inner": True}
    for rank in run_ranks(check_programs.untouched, 1):
        before, unasked, gradients, replicas, data, after = rank
        # Every session counts the optimizer's steps.
        counting = {**nothing, "optimizer": 1}
        assert before == after == nothing
        assert unasked == replicas == counting
        assert gradients == {"optimizer": 2, "model": 0, "norm": False, "inner": False}
        assert data == {**counting, "model": 1}


@pytest.mark.parametrize("where", ["input", "normed", "norm", "gradient", "parameter"])
def test_a_check_that_fails_costs_the_checks_alone(where: str) -> None:
    for rank in (found := run_ranks(check_programs.broken, 2, where)):
        assert rank["checked"] == rank["bare"]
    rows = found[0]["rows"]
    assert sorted((row["rank"], row["kind"]) for row in rows["notices"]) == [
        (0, "checks-stopped"),
        (1, "checks-stopped"),
    ]
    assert "ZeroDivisionError: planted" in rows["notices"][0]["text"]
    assert {(row["rank"], row["step"]) for row in rows["steps"]} == {
        (r, s) for r in range(2) for s in range(3)
    }
    assert {row["step"] for row in _of_steps(rows)} == {0}


def test_a_step_that_the_user_ends_half_way_leaves_no_values() -> None:
    leading, other = run_ranks(check_programs.raised, 2)
    assert leading["arrived"] == other["arrived"] == "the user's own"
    assert leading["hooks"] == other["hooks"] == 0
    kinds = Counter((row["step"], row["kind"]) for row in _of_steps(leading["rows"]))
    assert {step for step, _ in kinds} == {0, 2}
    assert {kind: count for (step, kind), count in kinds.items() if step == 0} == {
        kind: count for (step, kind), count in kinds.items() if step == 2
    }


@pytest.mark.parametrize("level", LEVELS)
def test_the_time_checks_take_is_captures_own_and_no_other_steps(level: str) -> None:
    rows = run_ranks(check_programs.slow, 2, level)[0]["rows"]
    for step in rows["steps"]:
        # Once for the input, before the norm, after it and for the optimizer; after the step it is no step's.
        slept_ns = 4 * 50_000_000 if step["step"] % 2 == 0 else 0
        # The parts of a step are disjoint: what is capture's is neither compute nor idle.
        assert step["capture_ns"] >= slept_ns
    assert len(rows["steps"]) == 8


# -- the values are true ---------------------------------------------------------------------------


def _layout(row: dict[str, Any], sizes: dict[str, int]) -> int:
    """How many ranks hold the same part: those along replicated dimensions."""
    count = 1
    dims = (row["mesh_dims"] or "").split(",")
    for at, placement in enumerate(filter(None, (row["placements"] or "").strip("()").split("), "))):
        if placement.startswith("Replicate"):
            count *= sizes[dims[at]]
    return count


@pytest.mark.parametrize(
    ("kind", "world", "sizes"),
    [
        ("fsdp2", 2, {"": 2}),
        ("tp", 2, {"": 2}),
        ("hsdp", 4, {"r": 2, "s": 2}),
        ("two_d", 4, {"dp": 2, "tp": 2}),
    ],
)
def test_what_the_ranks_hold_adds_up_to_the_whole(kind: str, world: int, sizes: dict[str, int]) -> None:
    found = run_ranks(check_programs.sharded, world, kind)
    rows, true = found[0]["rows"], found[0]["true"]
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 9)
    for row in _of_steps(rows):
        if row["kind"] == "norm":
            assert row["square"] == pytest.approx(true["norm"] ** 2, rel=1e-5)
            assert (row["nth"], row["name"]) == (0, "torch.nn.utils.clip_grad_norm_")
            continue
        held = _layout(row, sizes) if row["placements"] else world
        numbers = [row["square"], *(row[name] for name in SKETCH_COLUMNS)]
        total = sums[row["kind"], row["name"]]
        for at, number in enumerate(numbers):
            total[at] += number / held
    assert {kind for kind, _ in sums} == {"gradient", "normed", "parameter"}
    for (what, name), total in sums.items():
        scale = max(1e-12, true[what][name][0])
        assert total[0] == pytest.approx(true[what][name][0], rel=1e-5)
        assert total[1:] == pytest.approx(true[what][name][1:], abs=1e-3 * scale**0.5), (what, name)
    # Clipped: what the optimizer saw is not what the norm was taken of.
    squares = {what: sum(total[0] for (w, _), total in sums.items() if w == what) for what, _ in sums}
    assert squares["normed"] == pytest.approx(true["norm"] ** 2, rel=1e-5)
    assert squares["gradient"] == pytest.approx(1, rel=1e-3)
    parameters = {row["name"]: row for row in rows["parameters"] if row["rank"] == 0}
    assert {name: row["shape"] for name, row in parameters.items()} == found[0]["shape"]
    assert {row["wrapper"] for row in parameters.values()} == {None if kind == "tp" else "FSDP2"}
    assert {row["reduced_by_wrapper"] for row in parameters.values()} == {None if kind == "tp" else True}
    assert all(row["has_grad"] for row in parameters.values())


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_flat_parts_of_fsdp1_add_up_by_their_place_in_the_flattened_parameter(use_orig_params: bool) -> None:
    found = run_ranks(check_programs.flat, 2, use_orig_params)
    rows, true = found[0]["rows"], found[0]["true"]
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 9)
    for row in _of_steps(rows):
        if row["kind"] == "norm":
            assert row["name"] == "FullyShardedDataParallel.clip_grad_norm_"
            assert row["square"] == pytest.approx(found[0]["norm"], rel=1e-4)
        elif row["kind"] == "gradient":
            for at, number in enumerate([row["square"], *(row[name] for name in SKETCH_COLUMNS)]):
                sums[row["name"]][at] += number or 0.0
    assert sum(total[0] for total in sums.values()) == pytest.approx(found[0]["norm"], rel=1e-4)
    assert {row["wrapper"] for row in rows["parameters"]} == {"FSDP1"}
    assert {row["group"] for row in rows["parameters"]} == {"0"}
    if use_orig_params:
        for name, total in sums.items():
            assert total == pytest.approx(true[name], rel=1e-4, abs=1e-3 * true[name][0] ** 0.5)
        assert {row["name"] for row in rows["parameters"]} == set(true)


@pytest.mark.parametrize("outside", [False, True])
def test_ddp_tells_what_it_reduces_and_each_optimizer_what_it_takes(outside: bool) -> None:
    found = run_ranks(check_programs.wrapped, 2, outside)
    rows = found[0]["rows"]
    assert rows["notices"] == []
    of = {row["name"]: row for row in rows["parameters"] if row["rank"] == 0}
    assert {name: row["reduced_by_wrapper"] for name, row in of.items()} == {
        "known.weight": True,
        "known.bias": True,
        "ignored.weight": False,
        "thawed.weight": False,
        "frozen": False,
        "tied.weight": True,
        "tied.bias": True,
        "late.weight": False,
    }
    assert {row["wrapper"] for row in of.values()} == {"DDP"}
    assert {row["group"] for row in of.values()} == {found[0]["group"]}
    assert {name: row["tied_to"] for name, row in of.items() if row["tied_to"]} == {
        "tied.weight": "known.weight",
        "tied.bias": "known.bias",
    }
    # No optimizer has the thawed one: what its gradient is before one steps is nobody's affair.
    assert {name for name, row in of.items() if not row["has_grad"]} == {"frozen", "thawed.weight"}
    assert {name for name, row in of.items() if not row["requires_grad"]} == {"frozen"}
    values = [row for row in _of_steps(rows) if row["rank"] == 0 and row["step"] == 1]
    gradients = {row["name"]: row for row in values if row["kind"] == "gradient"}
    assert set(gradients) == {"known.weight", "known.bias", "ignored.weight", "late.weight"}
    assert gradients["late.weight"]["square"] == pytest.approx(found[0]["late"])
    # The checkpoint runs each forward again in backward: that is no other micro-batch.
    inputs = [(row["name"], row["nth"]) for row in values if row["kind"] == "input"]
    assert sorted(inputs) == [("args[0]", 0), ("args[0]", 1), ("kwargs.scale", 0), ("kwargs.scale", 1)]
    assert [row["name"] for row in values if row["kind"] == "buffer"] == ["steps"]


def test_only_whole_steps_that_are_due_are_looked_at() -> None:
    rows = run_ranks(check_programs.before_steps, 1)[0]
    kinds = Counter((row["step"], row["kind"]) for row in _of_steps(rows["steps"]))
    each = {"input": 1, "gradient": 4, "normed": 4, "norm": 1, "parameter": 4}
    assert kinds == {(step, kind): count for step in (0, 2) for kind, count in each.items()}
    assert Counter(row["kind"] for row in _of_steps(rows["whole"])) == each
    assert len(rows["steps"]["parameters"]) == 4
