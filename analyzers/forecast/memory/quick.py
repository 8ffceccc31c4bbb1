"""Peak memory in closed form, for pruning: the same sizes as the replay, added up without the allocator."""

from __future__ import annotations

from functools import lru_cache

from shardtoll.analyzers.forecast.memory.block_storages import Block
from shardtoll.analyzers.forecast.memory.memory_fits import fit_of
from shardtoll.analyzers.forecast.memory.peak import host_ahead
from shardtoll.analyzers.forecast.memory.rank_allocations import RankAllocations
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.analyzers.forecast.memory.tape import Tape
from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan


def quick_peak_bytes(plan: TrainingPlan) -> int:
    """Bytes that the worst of first and last stage reserves, about 10 % off the replay."""
    layout, ahead = plan.layout, host_ahead(plan)
    recipe = recipe_of(plan)
    worst = 0.0
    for stage in sorted({0, layout.pp - 1}):
        rank = RankAllocations(plan, recipe, stage, ahead)
        in_flight = min(layout.pp - stage, layout.accumulation)
        if layout.chunks > 1:
            in_flight = min(in_flight + (layout.pp - 1) // layout.chunks, layout.accumulation)
        one = Layout(
            dp=layout.dp if layout.ep > 1 else 1, tp=layout.tp, cp=layout.cp, ep=layout.ep,
            sequence_parallel=layout.sequence_parallel, micro_batch=layout.micro_batch,
            checkpointing=layout.checkpointing,
        )  # fmt: skip
        kept, most = _block(
            plan.model, one, plan.sequence, plan.precision, plan.framework, plan.compiled, ahead
        )
        state = rank.state_bytes()
        forward = in_flight * rank.layers * kept + rank.logits * 4 * recipe.logits_copies
        gradients = rank.parameters * recipe.gradient_bytes if not rank.fsdp else 0.0
        worst = max(worst, state + max(forward + most, gradients + most))
    fit = fit_of(recipe.name)
    return round(worst * fit.scale + fit.extra_bytes)


@lru_cache(maxsize=4096)
def _block(
    model: ModelShape,
    layout: Layout,
    sequence: int,
    precision: str,
    framework: str,
    compiled: bool,
    ahead: bool,
) -> tuple[float, float]:
    """Bytes that a block saves, and the most that one holds while it runs."""
    plan = TrainingPlan(
        model, layout, sequence, "", precision=precision, framework=framework, compiled=compiled
    )
    tape = Tape()
    block = Block(plan, recipe_of(plan), ahead)
    saved = block.forward(tape)
    kept = sum(live_bytes(tape))
    gradient = tape.new(block.sizes.hidden)
    block.backward(tape, saved, gradient)
    live, most = 0, 0
    sizes: dict[object, int] = {}
    for key, size, _, _ in tape.events:
        if size is None:
            live -= sizes.pop(key)
        else:
            sizes[key] = size
            live += size
            most = max(most, live)
    return kept, max(0.0, most - kept)


def live_bytes(tape: Tape) -> list[int]:
    """Bytes of each storage that is live at the tape's end."""
    sizes: dict[object, int] = {}
    for key, size, _, _ in tape.events:
        if size is None:
            del sizes[key]
        else:
            sizes[key] = size
    return list(sizes.values())
