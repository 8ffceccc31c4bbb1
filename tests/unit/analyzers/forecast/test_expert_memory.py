"""Memory of mixtures of experts: all ranks together hold each parameter and its state at least once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.memory.block_storages import block_sizes
from shardtoll.analyzers.forecast.memory.peak import replay_stage
from shardtoll.analyzers.forecast.memory.rank_weights import block_weights, parameter_count
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.analyzers.forecast.plan.sizes import parameters
from shardtoll.analyzers.forecast.rows.models import model_of
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, Sharding, TrainingPlan

EXPERTS = ModelShape(4, 512, 8, 8, 2048, 1024, gated=True, experts=8, topk=2, name="experts")
PUBLISHED = (
    *("mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-120b"),
    *("llama-4-scout", "llama3-70b", "gemma2-9b", "gpt3-175b"),
)


def plan(model: ModelShape, layout: Layout, sequence: int = 64) -> TrainingPlan:
    return TrainingPlan(model, layout, sequence, "h100-sxm")


@pytest.mark.parametrize("name", PUBLISHED)
def test_memory_counts_the_parameters_that_the_price_counts(name: str) -> None:
    model = model_of(name)
    assert model is not None
    assert parameter_count(replace(model, params=None)) == pytest.approx(parameters(model), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    sharding=st.sampled_from(["ddp", "zero1", "zero2", "fsdp"]),
)
def test_all_ranks_hold_the_optimizers_state_of_each_parameter(
    dp: int, tp: int, ep: int, sharding: Sharding
) -> None:
    if dp * tp % ep:
        return
    layout = Layout(dp=dp, tp=tp, sequence_parallel=tp > 1, ep=ep, sharding=sharding, checkpointing="full")
    held = replay_stage(plan(EXPERTS, layout), 0).at_peak
    # Two moments in fp32; norms and routers are whole on each tensor-parallel rank.
    least = 8 * parameter_count(EXPERTS)
    everywhere = dp * tp * held["optimizer"]
    assert everywhere >= 0.99 * least
    if sharding == "fsdp" or (dp == 1 and ep == 1):
        # Full sharding holds nothing twice.
        assert held["optimizer"] <= 1.2 * recipe_bytes(layout) * parameter_count(EXPERTS) / (dp * tp)


def recipe_bytes(layout: Layout) -> float:
    return 8 + recipe_of(plan(EXPERTS, layout)).master_bytes


def test_expert_parallelism_saves_no_state_that_full_sharding_has_cut_already() -> None:
    mixtral = model_of("mixtral-8x7b")
    assert mixtral is not None
    base = Layout(dp=4, sharding="fsdp", checkpointing="full")
    alone, with_experts = (
        plan_memory(plan(mixtral, replace(base, ep=ep), 2048)).by_category for ep in (1, 4)
    )
    for name in ("parameters", "optimizer"):
        assert with_experts[name] == pytest.approx(alone[name], rel=0.01)
    # A whole layer of all experts is gathered only without expert parallelism.
    assert with_experts["communication"] < alone["communication"]


def test_experts_have_their_own_width_and_a_head_its_own() -> None:
    narrow = replace(EXPERTS, expert_ffn=256, shared_experts=1, dense_layers=2, head_dim=128)
    weights = block_weights(narrow)
    matrix = 512 * 256
    assert weights.down_experts == 8 * matrix // 2
    assert weights.down == 8 * matrix // 2 + matrix // 2 + 512 * 2048 // 2
    assert weights.up == 2 * weights.down
    assert weights.output == 512 * 128 * 8
    sizes = block_sizes(plan(narrow, Layout()), recipe_of(plan(narrow, Layout())), True)
    assert sizes.query == 64 * 8 * 128 * 2
    assert sizes.ffn == 64 * 2 * (0.5 * 2048 + 0.5 * 3 * 256)
