"""Gradients of two runs, sharded in any way, against matrices that are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.analyzers.verify.gradient_equality import compare
from shardtoll.ledger import Finding, Group, Report, Value
from shardtoll.ledger.answers.verification import Gradients
from shardtoll.ledger.report.report import FabricInfo
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.ledgers import collective, ledger, run_of
from tests.unit.analyzers.sketched import parameter, replicated, sharded, value

G = np.random.default_rng(0).normal(size=(12, 5))
H = np.random.default_rng(1).normal(size=(12, 5))
HALF = slice(0, 12)


def report(
    values: Iterable[Value], ranks: int = 2, parameters: Iterable[Any] | None = None, **given: Any
) -> Report:
    dims = {"fsdp": tuple(range(ranks))} | given.pop("dims", {})
    groups = [Group(name, members, name) for name, members in dims.items()]
    made = ledger(given.pop("collectives", ()), run=run_of(ranks), groups=groups)
    tables = {
        **made.tables,
        "values": to_table("values", values),
        "parameters": to_table(
            "parameters", [parameter("weight", G.shape)] if parameters is None else parameters
        ),
    }
    return Report(made.run, FabricInfo("none", "none"), made.groups, tables)


def compared(before: Report, after: Report, *findings: Finding) -> Gradients:
    return compare(before, after, findings)


def wrong(kind: str = "wrong-gradient") -> Finding:
    return Finding(kind, "error", "off", None, None, None, None, 1, (0,))


DDP = report(replicated(G, (0, 1)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_shards_add_up_to_the_whole_at_any_world_size(ranks: int):
    found = compared(DDP, report(sharded(G, ranks), ranks))
    assert (found.answer, found.parameters, found.steps) == ("equal", 1, 1), found.why


def test_parts_of_a_sum_are_added():
    parts = [
        value(G, HALF, held=part, rank=rank, placements="(Partial(sum),)", mesh_dims="fsdp")
        for rank, part in enumerate((G - H, H))
    ]
    assert compared(DDP, report(parts)).answer == "equal"


def test_two_dimensions_shard_one_and_copy_over_the_other():
    rows = [
        value(
            G,
            slice(6 * tp, 6 * tp + 6),
            rank=2 * dp + tp,
            placements="(Replicate(), Shard(dim=0))",
            mesh_dims="dp, tp",
        )
        for dp in range(2)
        for tp in range(2)
    ]
    groups = [
        Group("dp", (0, 2), "dp"),
        Group("dp", (1, 3), "dp"),
        Group("tp", (0, 1), "tp"),
        Group("tp", (2, 3), "tp"),
    ]
    after = replace(report(rows, 4), groups=tuple(groups))
    assert compared(DDP, after).answer == "equal"
    nameless = report([replace(row, mesh_dims=None) for row in rows], 4)
    assert compared(DDP, nameless).answer == "equal", "sketches tell shards from copies where names do not"


def test_a_missing_reduction_differs_by_half():
    after = report([value(G, HALF, held=part, rank=rank) for rank, part in enumerate((G - H, H))])
    found = compared(DDP, after)
    assert found.answer == "differ"
    (one,) = found.differences
    assert one.parameter == "weight"
    assert "replicas differ among themselves" in str(one.note)
    assert not found.change_expected


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0, 4.0])
def test_a_wrong_scale_is_named(factor: float):
    (one,) = compared(DDP, report(replicated(factor * G, (0, 1)))).differences
    assert one.factor == pytest.approx(factor)
    assert one.relative == pytest.approx(abs(factor - 1), rel=0.7), "estimated from eight numbers"


def test_a_difference_that_is_no_factor_has_none():
    (one,) = compared(DDP, report(replicated(G + 0.5 * H, (0, 1)))).differences
    assert one.factor is None


@pytest.mark.parametrize(("dtype", "off", "answer"), [
    ("float32", 1e-5, "equal"), ("float32", 1e-2, "differ"), ("float64", 1e-5, "differ"),
    ("bfloat16", 1e-2, "equal"), ("bfloat16", 0.5, "differ"),
])  # fmt: skip
def test_the_tolerance_is_that_of_the_dtype(dtype: str, off: float, answer: str):
    runs = [report(replicated(whole, (0, 1), dtype=dtype)) for whole in (G, G + off * H)]
    assert compared(*runs).answer == answer


def test_a_reduction_in_bfloat16_makes_float32_gradients_coarse():
    after = report(replicated(G + 1e-2 * H, (0, 1)), collectives=[collective(dtype="bfloat16")])
    assert compared(DDP, after).answer == "equal"
    elsewhere = [collective(dtype="bfloat16", phase="other")]
    assert compared(DDP, report(replicated(G + 1e-2 * H, (0, 1)), collectives=elsewhere)).answer == "differ"


def test_rounding_grows_with_the_steps_but_not_without_end():
    steps = range(8)
    before = report([row for step in steps for row in replicated(G, (0, 1), step=step)])

    def after(off: float) -> Report:
        return report([row for step in steps for row in replicated(G + off * 4**step * H, (0, 1), step=step)])

    assert compared(before, after(1e-5 / 4)).answer == "equal"
    late = compared(before, after(1e-4))
    assert late.answer == "differ"
    assert late.differences[0].step > 3


def test_a_gradient_that_is_rounding_only_is_held_to_the_noise_of_the_others():
    tiny = 1e-9 * H
    rows = [replicated(G, (0, 1)) + replicated(noise, (0, 1), name="key.bias") for noise in (tiny, -tiny)]
    names = [parameter("weight", G.shape), parameter("key.bias", G.shape)]
    assert compared(*(report(some, parameters=names) for some in rows)).answer == "equal"


def test_a_gradient_that_was_zero_is_from_zero():
    (one,) = compared(report(replicated(0 * G, (0, 1))), DDP).differences
    assert one.relative is None


def test_without_gradients_it_is_unknown_and_says_how_to_get_them():
    bare = report([])
    for before, after, who in (
        (DDP, bare, "the run after"),
        (bare, DDP, "the run before"),
        (bare, bare, "neither"),
    ):
        found = compared(before, after)
        assert found.answer == "unknown"
        assert who in found.why
        assert 'checks=("gradients",)' in found.why


def test_a_lost_shard_is_unknown_not_different():
    found = compared(DDP, report(sharded(G, 4)[:3], 4))
    assert found.answer == "unknown"
    assert "not all shards" in found.why


def test_other_steps_are_not_compared():
    found = compared(DDP, report(replicated(H, (0, 1), step=3)))
    assert found.answer == "unknown"
    assert "check_every" in found.why


def test_not_finite_differs():
    nan = dict.fromkeys(("square", *(f"sketch_{at}" for at in range(8))))
    found = compared(DDP, report(replicated(G, (0, 1), **nan)))
    assert found.answer == "differ"
    assert found.differences[0].note == "not finite in one of the runs"


def test_experts_of_one_name_on_every_rank_are_equal_rank_by_rank():
    rows = [value(part, HALF, rank=rank) for rank, part in enumerate((G, H))]
    assert compared(report(rows), report(rows)).answer == "equal"
    swapped = [replace(row, rank=1 - row.rank) for row in rows]
    assert compared(report(rows), report(swapped)).answer == "differ"


def by_hand(parts: Iterable[np.ndarray], **given: Any) -> Report:
    """Ranks that hold a part each as a plain tensor, `weight` by its own name on all of them."""
    return report([value(part, HALF, rank=rank, **given) for rank, part in enumerate(parts)])


def test_parts_cut_by_hand_are_no_replicas():
    found = compared(by_hand((G, H)), by_hand((G, 2 * H)))
    (one,) = found.differences
    assert found.answer == "differ"
    assert one.note is None, "no word of replicas"
    assert "compared rank by rank" in found.why
    assert compared(by_hand((G, H)), by_hand((G, H + 1e-6 * G))).answer == "equal"
    (scaled,) = compared(by_hand((G, H)), by_hand((3 * G, 3 * H))).differences
    assert scaled.factor == pytest.approx(3)


def test_parts_cut_otherwise_are_unknown_and_say_why():
    three = report([value(part, HALF, rank=rank) for rank, part in enumerate((G, H, G + H))], 3)
    found = compared(by_hand((G, H)), three)
    assert found.answer == "unknown"
    assert "each rank holds a part of its own" in found.why


def test_ranks_that_began_equal_are_replicas_that_differ():
    def run(*gradients: np.ndarray) -> Report:
        start = [value(G, HALF, rank=rank, kind="parameter") for rank in (0, 1)]
        return report([*start, *(value(g, HALF, rank=rank) for rank, g in enumerate(gradients))])

    found = compared(run(G, H), run(G, 2 * H))
    assert "replicas differ among themselves" in str(found.differences[0].note)


def test_what_a_wrapper_reduces_are_replicas_that_differ():
    wrapped = [parameter("weight", G.shape, rank, wrapper="DDP", group="fsdp") for rank in (0, 1)]
    runs = [
        report([value(G, HALF, rank=0), value(other, HALF, rank=1)], parameters=wrapped)
        for other in (H, 2 * H)
    ]
    assert "replicas differ among themselves" in str(compared(*runs).differences[0].note)


def test_flat_shards_do_not_compare_with_matrices():
    flat = [replace(row, shape="[60]") for row in replicated(G, (0, 1))]
    assert compared(DDP, report(flat)).answer == "unknown"


def test_a_fix_of_wrong_gradients_is_expected_to_change_them():
    assert compared(DDP, report(replicated(H, (0, 1))), wrong()).change_expected
    assert not compared(DDP, report(replicated(H, (0, 1))), wrong("checkpoint-stall")).change_expected


def test_other_batches_are_pointed_out():
    def with_input(whole: np.ndarray, number: int) -> Report:
        return report([*replicated(whole, (0, 1)), value(G, HALF, kind="input", name="args[0]", hash=number)])

    assert "other batches" in compared(with_input(G, 1), with_input(H, 2)).why
    assert "other batches" not in compared(with_input(G, 1), with_input(H, 1)).why
