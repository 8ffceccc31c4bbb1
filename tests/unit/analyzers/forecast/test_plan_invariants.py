"""What holds of every plan, whatever its numbers: parts are the step, more of a thing never costs less."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.plan import FabricNetwork, price_plan
from shardtoll.analyzers.roofline import Fabric, load_fabric
from shardtoll.ledger.answers.forecast import PlanPrice
from shardtoll.ledger.answers.training_plan import Checkpointing, Layout, ModelShape, Sharding, TrainingPlan

MODELS = (
    ModelShape(12, 768, 12, 12, 3072, 50257, name="small"),
    ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True, name="middle"),
    ModelShape(96, 12288, 96, 96, 49152, 51200, name="large"),
)
GPUS = {"h100-sxm": "h100x8-ib400", "a100-sxm-80gb": "a100x8-ib200"}
LEVELS: tuple[Checkpointing, ...] = ("none", "selective", "full")
ALMOST = 1.0001
SOME = 1.01
"""Allocations are rounded, and a small matmul's share is interpolated."""


@cache
def network(gpu: str, times: float = 1.0) -> FabricNetwork:
    fabric: Fabric = load_fabric(GPUS[gpu])
    inter = fabric.inter
    assert inter is not None
    node = inter.node_gbps and replace(inter.node_gbps, value=times * inter.node_gbps.value)
    rank = replace(inter.rank_gbps, value=times * inter.rank_gbps.value)
    named = f"{fabric.name} x {times}"
    return FabricNetwork(replace(fabric, name=named, inter=replace(inter, rank_gbps=rank, node_gbps=node)))


def price(plan: TrainingPlan, times: float = 1.0) -> PlanPrice:
    return price_plan(plan, network(plan.gpu, times))


def allocated(plan: TrainingPlan) -> int:
    return plan_memory(plan).allocated.expected_bytes


@st.composite
def plans(draw: st.DrawFn) -> TrainingPlan:
    sharding = draw(st.sampled_from(["ddp", "zero1", "fsdp"]))
    pp = 1 if sharding == "fsdp" else draw(st.sampled_from([1, 2, 4]))
    tp = draw(st.sampled_from([1, 2, 4]))
    layout = Layout(
        dp=draw(st.sampled_from([1, 2, 8, 32])), sharding=draw_sharding(sharding), tp=tp,
        sequence_parallel=tp > 1, pp=pp, chunks=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        micro_batch=draw(st.sampled_from([1, 2, 4])), accumulation=pp * draw(st.sampled_from([2, 8])),
        checkpointing=draw(st.sampled_from(LEVELS)),
    )  # fmt: skip
    return TrainingPlan(
        draw(st.sampled_from(MODELS)), layout, draw(st.sampled_from([512, 2048, 8192])),
        draw(st.sampled_from(list(GPUS))), precision=draw(st.sampled_from(["bf16", "fp32"])),
        framework=draw(st.sampled_from(["", "torchtitan", "composer FSDP1", "nanotron", "NeMo"])),
    )  # fmt: skip


def draw_sharding(name: str) -> Sharding:
    kinds: dict[str, Sharding] = {"ddp": "ddp", "zero1": "zero1", "fsdp": "fsdp"}
    return kinds[name]


SHORT = Layout(
    dp=8, sharding="zero1", tp=4, sequence_parallel=True, pp=8, micro_batch=2, accumulation=512
)  # fmt: skip


@example(plan=TrainingPlan(MODELS[0], SHORT, 2048, "h100-sxm"))
@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_the_parts_of_a_step_are_the_step_and_its_band_holds_it(plan: TrainingPlan) -> None:
    made = price(plan)
    parts = made.compute_ns + sum(made.exposed_ns.values()) + made.bubble_ns
    parts += made.optimizer_ns + made.other_ns
    step = made.step_ns
    # Messages of short stages hide in the pipeline's gaps, and cost nothing there.
    assert abs(parts / step.expected - 1) < 0.001
    assert 0 < step.low <= step.expected <= step.high
    tokens = plan.tokens / plan.layout.world_size
    assert abs(made.tokens_per_s_gpu.expected * step.expected / 1e9 / tokens - 1) < 1e-9


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_more_bandwidth_is_never_slower_and_twice_the_replicas_are_at_most_twice_as_fast(
    plan: TrainingPlan,
) -> None:
    step = price(plan).step_ns.expected
    assert price(plan, 2.0).step_ns.expected <= ALMOST * step
    layout = plan.layout
    half = layout.accumulation // 2
    if half >= layout.pp and (layout.chunks == 1 or half % layout.pp == 0):
        strong = replace(plan, layout=replace(layout, dp=2 * layout.dp, accumulation=half))
        # A sharded optimizer has half as much to do as well.
        assert ALMOST * price(strong).step_ns.expected >= step / 2


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_checkpointing_is_never_faster_and_never_takes_more(plan: TrainingPlan) -> None:
    level = LEVELS.index(plan.layout.checkpointing)
    assume(level)
    lighter = replace(plan, layout=replace(plan.layout, checkpointing=LEVELS[level - 1]))
    assert price(lighter).step_ns.expected <= ALMOST * price(plan).step_ns.expected
    assert allocated(plan) <= SOME * allocated(lighter)


@settings(max_examples=40, deadline=None)
@given(plan=plans())
def test_longer_sequences_and_larger_micro_batches_never_take_less(plan: TrainingPlan) -> None:
    longer = replace(plan, sequence=2 * plan.sequence)
    assert SOME * allocated(longer) >= allocated(plan)
    assert price(longer).step_ns.expected >= price(plan).step_ns.expected
    layout = plan.layout
    larger = replace(layout, micro_batch=2 * layout.micro_batch)
    assert SOME * allocated(replace(plan, layout=larger)) >= allocated(plan)
