"""The parts of a step whose parameters are sharded over replicas."""

from __future__ import annotations

from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.graphs.sharded_step import ShardedTimes, sharded_step_ns
from shardtoll.analyzers.forecast.plan.groups import Groups
from shardtoll.analyzers.forecast.plan.local import local_parameters, optimizer_ns, sharded_parameters
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.phases import Phases
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import TrainingPlan


def sharded_parts(
    plan: TrainingPlan, traits: Traits, groups: Groups, phases: Phases, constants: Constants
) -> Parts:
    """Return the step of a plan with full sharding and one stage."""
    layout, model = plan.layout, plan.model
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    block = local_parameters(plan, 1, ends=0)
    root = local_parameters(plan, 0, ends=1 if model.tied else 2)
    wide = plan.width_bytes

    call_ns = 1000 * constants.get("call_us", *scopes)
    shards = (layout.shard_size or layout.dp) * layout.cp

    def gather(count: float) -> float:
        return (
            groups.time("all_gather", count * wide, groups.shards, constants, *scopes).expected_ns + call_ns
        )

    def scatter(count: float) -> float:
        size = count * max(traits.gradient_bytes, wide)
        one = groups.time("reduce_scatter", size, groups.shards, constants, *scopes).expected_ns + call_ns
        if groups.copies.ranks == 1:
            return one
        # Copies of a shard average what was scattered to them (HSDP).
        between = groups.time("all_reduce", size / shards, groups.copies, constants, *scopes)
        return one + between.expected_ns + call_ns

    held = sharded_parameters(plan, model.layers, ends=1 if model.tied else 2, shards=shards)
    optimizer = optimizer_ns(plan, traits, constants, held)
    one = phases.embedding.plus(phases.block_forward, model.layers).plus(phases.block_backward, model.layers)
    one = one.plus(phases.head_forward).plus(phases.head_backward)
    times = ShardedTimes(
        phases.embedding.time_ns, phases.block_forward.time_ns, phases.block_backward.time_ns,
        phases.head_forward.time_ns + phases.head_backward.time_ns,
        gather(block), scatter(block), gather(root), scatter(root),
        optimizer,
    )  # fmt: skip
    regathers = "grad" not in plan.notes.get("sharding", "")
    contention = constants.get("contention", *scopes)
    step = sharded_step_ns(times, model.layers, layout.accumulation, contention, regathers=regathers)
    busy = layout.accumulation * one.time_ns
    exposed = {cause: layout.accumulation * value for cause, value in one.exposed_ns.items()}
    exposed["data"] = max(0.0, step - busy - optimizer)
    fixed = 1e6 * constants.get("step_ms", *scopes)
    compute = layout.accumulation * one.compute_ns
    host = max(0.0, busy - compute - sum(one.exposed_ns.values()) * layout.accumulation)
    net = exposed["data"] if groups.data.spans_nodes else 0.0
    return Parts(
        step + fixed, compute, exposed, 0.0, optimizer, host + fixed, net + groups.beyond_nodes_ns(exposed)
    )
