"""Memory of plans: closed forms of state, directions of levers, and published rows."""

import csv
import statistics
from dataclasses import replace

import pytest

from shardtoll.analyzers.forecast.memory.peak import plan_memory, replay_stage
from shardtoll.analyzers.forecast.memory.rank_weights import block_weights, parameter_count, stage_layers
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan
from tests.shared_inputs import shared

LLAMA = ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True)
GIB = 2**30


def plan(layout: Layout, framework: str = "", model: ModelShape = LLAMA, **fields: object) -> TrainingPlan:
    return replace(TrainingPlan(model, layout, 4096, "h100-sxm", framework=framework), **fields)  # type: ignore[arg-type]


def test_parameters_are_counted_as_published() -> None:
    assert parameter_count(LLAMA) == 8_030_261_248  # Meta's Llama-3-8B
    gpt2 = ModelShape(12, 768, 12, 12, 3072, 50257, tied=True)
    assert parameter_count(gpt2) == pytest.approx(124e6, rel=0.01)
    mixtral = ModelShape(32, 4096, 32, 8, 14336, 32000, gated=True, experts=8, topk=2)
    assert parameter_count(mixtral) == pytest.approx(46.7e9, rel=0.01)


def test_stages_hold_all_layers_once() -> None:
    assert stage_layers(LLAMA, 5, False) == [7, 7, 6, 6, 6]
    balanced = stage_layers(replace(LLAMA, layers=16), 8, True)
    assert sum(balanced) == 16
    assert balanced[-1] < balanced[0]  # the last stage has the output projection


def test_state_of_ddp_is_sixteen_bytes_a_parameter_and_its_buckets() -> None:
    small = replace(LLAMA, layers=2, vocab=1000)
    for dp, bytes_each in ((1, 12), (4, 16)):
        memory = plan_memory(plan(Layout(dp=dp), model=small))
        state = sum(memory.by_category[name] for name in ("parameters", "optimizer", "communication"))
        assert state == pytest.approx(bytes_each * parameter_count(small), rel=0.01)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "fsdp"])
def test_sharding_divides_the_optimizers_state(sharding: str) -> None:
    whole = plan_memory(plan(Layout(dp=8), "megatron"))
    cut = plan_memory(plan(Layout(dp=8, sharding=sharding), "megatron"))  # type: ignore[arg-type]
    assert cut.by_category["optimizer"] == pytest.approx(whole.by_category["optimizer"] / 8, rel=0.01)
    assert cut.reserved.expected_bytes < whole.reserved.expected_bytes


def test_each_lever_moves_memory_its_way() -> None:
    base = Layout(dp=8, sharding="fsdp", micro_batch=2)

    def reserved(layout: Layout) -> int:
        return plan_memory(plan(layout)).reserved.expected_bytes

    usual = reserved(base)
    assert reserved(replace(base, micro_batch=4)) > usual
    assert reserved(replace(base, dp=16)) < usual
    selective = reserved(replace(base, checkpointing="selective"))
    assert reserved(replace(base, checkpointing="full")) < selective < usual
    split = replace(base, dp=4, tp=2)
    assert reserved(replace(split, sequence_parallel=True)) < reserved(split) < usual
    assert reserved(replace(base, dp=4, cp=2)) < usual


def test_the_first_stage_of_a_pipeline_keeps_more_micro_batches() -> None:
    layout = Layout(pp=4, accumulation=8)
    model = replace(LLAMA, vocab=1024)
    first = plan_memory(plan(layout, model=model), stage=0).by_category["activations"]
    third = plan_memory(plan(layout, model=model), stage=2).by_category["activations"]
    assert first > 1.9 * third  # four micro-batches in flight against two
    with pytest.raises(ValueError, match="stage 4 of 4 stages"):
        plan_memory(plan(layout), stage=4)


def test_categories_add_up_and_the_band_decides_whether_it_fits() -> None:
    memory = plan_memory(plan(Layout(dp=8, sharding="fsdp")), capacity_bytes=80 * GIB)
    assert sum(memory.by_category.values()) == memory.reserved.expected_bytes
    assert memory.reserved.low_bytes < memory.reserved.expected_bytes < memory.reserved.high_bytes
    assert memory.fits()
    assert memory.fits(0.1) is False
    expected = memory.reserved.expected_bytes + memory.outside_bytes
    assert replace(memory, capacity_bytes=expected).fits() is None
    assert replace(memory, capacity_bytes=None).fits() is None


def test_experts_are_divided_over_expert_parallel_ranks() -> None:
    mixtral = replace(LLAMA, experts=8, topk=2)
    assert block_weights(mixtral, 1, 8).up * 8 == block_weights(mixtral, 1, 1).up


def test_published_rows_are_within_their_aim() -> None:
    with shared("forecast", "e2e_train.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["group"] == "hf-ultrascale" and r["mem_gib"]][::9]
    errors = []
    for row in rows:
        model = ModelShape(
            *(int(row[name]) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")),
            gated=True,
            tied=row["tied"] == "1",
        )
        layout = Layout(
            dp=int(row["dp"]),
            sharding="zero1" if row["shard"] == "ZeRO1" else "ddp",
            tp=int(row["tp"]),
            sequence_parallel=int(row["tp"]) > 1,
            pp=int(row["pp"]),
            micro_batch=int(row["mbs"]),
            accumulation=int(row["ga"]),
        )
        memory = plan_memory(plan(layout, "nanotron", model), stage=0)
        errors.append(abs(memory.reserved.expected_bytes / GIB / float(row["mem_gib"]) - 1))
    assert statistics.median(errors) < 0.05
    assert sorted(errors)[int(0.9 * len(errors))] < 0.15


@pytest.mark.parametrize(("gpus", "published"), [(8, 82.4), (128, 67.0)])
def test_torchtitans_published_peaks_need_no_fit(gpus: int, published: float) -> None:
    layout = Layout(dp=gpus, sharding="fsdp", micro_batch=2, checkpointing="selective")
    titan = plan(layout, "torchtitan", sequence=8192)
    assert replay_stage(titan, 0).reserved_peak_bytes / GIB == pytest.approx(published, rel=0.05)
