"""A recorded step's degrees, uneven stages and loaders: what is ambiguous is refused or a bound, no guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers.advise.advise import Beside, advise
from shardtoll.analyzers.advise.from_run.measured import loader_rates, measured_beside
from shardtoll.analyzers.advise.from_run.run_question import derive
from shardtoll.analyzers.advise.from_run.step_layout import degrees_of, sharding_of
from shardtoll.analyzers.advise.search import plan_for
from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.plan import FabricNetwork, price_plan
from shardtoll.analyzers.forecast.rows.parse import read_row
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger import Compute, Report, Stall, UsageError
from shardtoll.ledger.answers.training_plan import Layout
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.report.report import FabricInfo
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.advise.test_advise import BASE
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step


def report(world: int, mesh: dict[str, int] | None = None, **given: Any) -> Report:
    made = ledger(run=run_of(world, mesh=mesh or {}), **given)
    return Report(made.run, FabricInfo("none", "none"), made.groups, made.tables)


def stage(rank: int, layers: range) -> list[Compute]:
    """Operators of a rank's blocks: width 64, 4 heads of 16, 256 columns, 2 x 32 tokens."""
    parts = [
        ("q", "mm", "bf16[64,64] bf16[64,64]"),
        ("k", "mm", "bf16[64,64] bf16[64,64]"),
        ("v", "mm", "bf16[64,64] bf16[64,64]"),
        ("attention", "_scaled_dot_product_flash_attention", " ".join(["bf16[2,4,32,16]"] * 3)),
        ("o", "mm", "bf16[64,64] bf16[64,64]"),
        ("up", "mm", "bf16[64,64] bf16[64,256]"),
        ("down", "mm", "bf16[64,256] bf16[256,64]"),
    ]
    rows = [(f"layers.{layer}.{name}", op, shapes) for layer in layers for name, op, shapes in parts]
    return [
        compute(rank=rank, index=index, module=module, op=f"aten.{op}.default", shapes=shapes)
        for index, (module, op, shapes) in enumerate(rows)
    ]


def reduces(size: int, **given: Any) -> list[Any]:
    return [collective(phase="forward", group=f"g{size}", group_size=size, **given)]


def test_a_reduction_over_all_ranks_in_forward_is_no_guess() -> None:
    assert degrees_of(report(8, collectives=reduces(4))).tp == 4
    assert degrees_of(report(8, collectives=reduces(8, message_bytes=4))).dp == 8
    for calls in (reduces(8), [*reduces(2), *reduces(4)]):
        with pytest.raises(UsageError, match=r"which are tensor parallel is unknown: leave the run out and"):
            degrees_of(report(8, collectives=calls))


@pytest.mark.parametrize("dims", [(None, None), ("dp", None), ("tp", None), ("dp", "tp")])
def test_groups_with_and_without_the_name_of_a_mesh_dimension_have_a_sharding(dims: Sequence[Any]) -> None:
    scatters = [
        collective(seq=number, op="reduce_scatter", phase="forward", mesh_dim=dim)
        for number, dim in enumerate(dims)
    ]
    made = report(4, {"dp": 2, "tp": 2}, collectives=scatters)
    assert sharding_of(made, degrees_of(made)) == ("zero1", "tp" in dims)


def dry_op(op: str, dtype: str, flops: int) -> DryOp:
    return DryOp(0, 0, 0, f"aten.{op}.default", "gemm", "forward", flops, 4, 4, dtype)


@pytest.mark.parametrize(
    ("dry", "precision"),
    [
        ((), "fp32"),
        ((("mm", "float32", 5),), "fp32"),
        ((("mm", "tf32", 5), ("addmm", "float32", 3)), "tf32"),
        # A switch of convolutions alone, which torch has on.
        ((("convolution", "tf32", 9), ("mm", "float32", 5)), "fp32"),
    ],
)
def test_products_of_float32_have_the_precision_of_the_dry_run(dry: Any, precision: str) -> None:
    shapes = [replace(row, shapes=row.shapes.replace("bf16", "f32")) for row in stage(0, range(2))]
    made = report(1, computes=shapes)
    made = replace(made, tables={**made.tables, "dry_ops": to_table("dry_ops", [dry_op(*op) for op in dry])})
    assert derive(made, "run").values["precision"] == precision


def test_tensorfloat_32_is_float32_in_memory_and_half_of_16_bits_in_time() -> None:
    plans = {name: plan_for(replace(BASE, precision=name), Layout(dp=8)) for name in ("fp32", "tf32", "bf16")}
    fabric = FabricNetwork(load_fabric("h100x8-ib400"))
    exact, narrow, half = (price_plan(plan, fabric).compute_ns for plan in plans.values())
    assert half < narrow < exact
    peaks = [plan_memory(plan, 80 << 30).reserved.expected_bytes for plan in plans.values()]
    assert peaks[0] == peaks[1] > peaks[2]
    row = {"model": "llama3-8b", "gpus": "8", "gpu": "h100-sxm", "precision": "TF32", "seq": "2048"}
    assert read_row(row).plan.precision == "tf32"


def test_a_mesh_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="mesh tp 8 does not divide the run's 12 ranks"):
        degrees_of(report(12, {"tp": 8}))


def test_sends_are_of_stages_only_where_ranks_hold_other_blocks() -> None:
    sends = [collective(phase="forward", op="send", group_size=2)]
    stages = [*stage(0, range(2)), *stage(1, range(2, 4))]
    assert degrees_of(report(2, collectives=sends, computes=stages)).pp == 2
    ring = [*stage(0, range(2)), *stage(1, range(2))]
    for rows in (ring, []):
        with pytest.raises(UsageError, match="stages or a ring of context parallelism is unknown"):
            degrees_of(report(2, collectives=sends, computes=rows))


@pytest.mark.parametrize(
    ("bounds", "layers"), [((0, 3, 6, 8, 10), 10), ((0, 2, 4, 7, 10), 10), ((0, 2, 4, 6, 8), 8)]
)
def test_uneven_stages_are_counted_together(bounds: tuple[int, ...], layers: int) -> None:
    rows = [row for rank in range(4) for row in stage(rank, range(bounds[rank], bounds[rank + 1]))]
    derived = derive(report(4, {"pp": 4}, computes=rows), "ours")
    assert derived.values["model"]["layers"] == layers
    assert derived.notes[0].startswith(f"The run has {layers} blocks")


@pytest.mark.parametrize("head", [True, False])
def test_the_last_stage_shows_how_many_classes_there_are(head: bool) -> None:
    rows = [row for rank in range(2) for row in stage(rank, range(3 * rank, 3 * rank + 3))]
    if head:
        rows.append(
            compute(
                rank=1, index=99, module="output", op="aten.mm.default", shapes="bf16[64,64] bf16[64,500]"
            )
        )
    derived = derive(report(2, {"pp": 2}, computes=rows), "ours")
    assert derived.values["model"]["vocab"] == (500 if head else 32_000)
    assert [note for note in derived.notes if "assumed" in note] == (
        [] if head else ["No rank shows its classes: 32,000 are assumed."]
    )
    assert f"{500 if head else 32_000:,} classes" in derived.notes[0]


def test_stages_that_number_their_blocks_from_0_are_multiplied() -> None:
    rows = [row for rank in range(2) for row in stage(rank, range(3))]
    assert derive(report(2, {"pp": 2}, computes=rows), "ours").values["model"]["layers"] == 6


def fetched(
    waited_ns: int,
    before_ns: int | None = None,
    mesh: dict[str, int] | None = None,
    world: int = 2,
    readers: Sequence[int] = (),
) -> Report:
    """Ranks of one host with steps of 100 ms. Readers (empty: all ranks) got 4 samples each step."""
    rows = [
        Stall(number, rank, "data", "next", "other", 1, waited_ns, 0, samples=4, before_ns=before_ns)
        for number in range(3)
        for rank in readers or range(world)
    ]
    steps = [step(number, rank) for number in range(3) for rank in range(world)]
    return report(world, mesh, stalls=rows, steps=steps)


def test_loaders_that_keep_up_delivered_no_more_than_the_steps_took() -> None:
    # 4 samples each 100 ms on two ranks; the loop waited 40 us for them.
    assert loader_rates(fetched(40_000)) == pytest.approx((80, 200_000))
    assert loader_rates(fetched(100 * MS, 100 * MS)) == pytest.approx((40, 80))
    assert measured_beside(fetched(0)) == {
        "loader_sequences_per_s": pytest.approx(80),
        "loader_most_sequences_per_s": None,
    }


@pytest.mark.parametrize(
    ("mesh", "readers", "replicas"),
    [
        ({"dp": 8}, range(8), 8),
        ({"dp": 4, "tp": 2}, range(8), 4),
        ({"dp": 2, "cp": 2, "tp": 2}, range(8), 2),
        # Rank 0 of each tensor-parallel group reads and sends to the others.
        ({"dp": 4, "tp": 2}, range(0, 8, 2), 4),
        # First and last stages read: the tokens and the labels of the same sequences.
        ({"pp": 4, "dp": 2}, (0, 1, 6, 7), 2),
        ({"tp": 8}, range(8), 1),
    ],
)
def test_ranks_of_a_replica_read_the_same_sequences(
    mesh: dict[str, int], readers: Sequence[int], replicas: int
) -> None:
    # 4 samples each 100 ms and replica; the loop waited half of it.
    rates = loader_rates(fetched(50 * MS, None, mesh, 8, readers))
    assert rates == pytest.approx((40 * replicas, 80 * replicas))


def test_loaders_of_unknown_replicas_have_no_rate() -> None:
    assert loader_rates(fetched(50 * MS, None, {"tp": 3}, 8)) is None


def test_what_loaders_can_do_is_a_bound() -> None:
    def said(least: float, most: float | None) -> str:
        beside = Beside(loader_sequences_per_s=least, loader_most_sequences_per_s=most)
        loader = advise(BASE, beside=beside).loader
        assert loader is not None
        return loader.words

    assert said(1e9, None).endswith("at least 1,000,000,000: enough.")
    assert said(1e-3, 2e-3).endswith("at least 0.001, at most 0.002: too slow.")
    for most in (1e9, None):
        assert "Whether they can do more is unknown" in said(1e-3, most)
