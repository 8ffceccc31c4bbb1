"""Peak memory of a training plan: the ranks that may need most, replayed through the allocator's model."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.forecast.memory.allocator import Replayed, replay
from shardtoll.analyzers.forecast.memory.memory_fits import fit_of
from shardtoll.analyzers.forecast.memory.rank_allocations import RankAllocations
from shardtoll.analyzers.forecast.memory.rank_weights import block_weights, stage_layers
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.ledger.answers.plan_memory import CATEGORIES, Category, MemoryBand, PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan

CONTEXT_BYTES: Final = 550 << 20
"""CUDA context with cuBLAS and the kernels of torch on an H100. Published plans are fitted with it. A dry
run, whose storages no row states, has its own in `analyzers.forecast.dry.memory`."""
COMMUNICATOR_BYTES: Final = 150 << 20
"""NCCL's buffers and code for one process group, outside the allocator."""
_HOST_BOUND_S: Final = 0.13
"""Nanotron's pipeline messages between nodes keep the host waiting about as long, per micro-batch."""
_SUSTAINED_FLOPS: Final = 4.5e14


def plan_memory(
    plan: TrainingPlan, capacity_bytes: int | None = None, *, stage: int | None = None
) -> PlanMemory:
    """Forecast the peak memory of a rank.

    `capacity_bytes`: what the driver reports of the GPU, None if unknown. `stage`: the pipeline stage; None
    takes the first or the last, whichever reserves more. Raises ValueError for a stage that the plan does not
    have.
    """
    last = plan.layout.pp - 1
    if stage is not None and not 0 <= stage <= last:
        raise ValueError(f"stage {stage} of {last + 1} stages")
    stages = sorted({0, last}) if stage is None else [stage]
    replayed = {each: replay_stage(plan, each) for each in stages}
    worst = max(replayed, key=lambda each: replayed[each].reserved_peak_bytes)
    return _answer(plan, replayed[worst], worst, capacity_bytes)


def replay_stage(plan: TrainingPlan, stage: int) -> Replayed:
    """Replay the allocations of a rank of the stage."""
    return replay(RankAllocations(plan, recipe_of(plan), stage, host_ahead(plan)).events())


def host_ahead(plan: TrainingPlan) -> bool:
    """Whether the host runs far ahead of the device, so that buffers wait for communication streams.

    It does unless stages sit on different nodes and a micro-batch is short: then each message makes the
    host wait.
    """
    layout = plan.layout
    if layout.pp == 1 or layout.tp * layout.dp * layout.cp < plan.gpus_per_node:
        return True
    layers = stage_layers(plan.model, layout.pp, recipe_of(plan).balanced_stages)[0]
    weights = layers * block_weights(plan.model, layout.tp, layout.ep).total
    seconds = 6 * weights * layout.micro_batch * plan.sequence / layout.cp / _SUSTAINED_FLOPS
    return seconds > _HOST_BOUND_S


def outside_bytes(plan: TrainingPlan) -> int:
    """Bytes outside the allocator: the CUDA context, and NCCL's buffers for each kind of group in use."""
    layout = plan.layout
    groups = 1 + sum(size > 1 for size in (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp))
    return CONTEXT_BYTES + groups * COMMUNICATOR_BYTES


def _answer(plan: TrainingPlan, replayed: Replayed, stage: int, capacity_bytes: int | None) -> PlanMemory:
    fit = fit_of(recipe_of(plan).name)
    expected = round(replayed.reserved_peak_bytes * fit.scale + fit.extra_bytes)
    allocated = replayed.allocated_peak_bytes
    by_category: dict[Category, int] = {name: replayed.at_peak.get(name, 0) for name in CATEGORIES}
    by_category["allocator"] = max(0, expected - sum(by_category.values()))
    return PlanMemory(
        allocated=MemoryBand(allocated, round(allocated * fit.low), round(allocated * fit.high)),
        reserved=MemoryBand(expected, round(expected * fit.low), round(expected * fit.high)),
        by_category=by_category,
        outside_bytes=outside_bytes(plan),
        capacity_bytes=capacity_bytes,
        stage=stage,
    )
