"""The price of a plan: its blocks, collectives and schedule put together by the event engine."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.check import check_plan, usual_fabric
from shardtoll.analyzers.forecast.plan.constants import Constants, fitted, widths
from shardtoll.analyzers.forecast.plan.graphs.sharded_step import ShardedTimes, sharded_step_ns
from shardtoll.analyzers.forecast.plan.groups import Groups, groups_of
from shardtoll.analyzers.forecast.plan.local import local_parameters, optimizer_ns, sharded_parameters
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, Network
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.phases import DTYPES, Phases, phases_of
from shardtoll.analyzers.forecast.plan.price_staged import staged_parts
from shardtoll.analyzers.forecast.plan.sizes import model_flops_per_token
from shardtoll.analyzers.forecast.plan.traits import Traits, traits_of
from shardtoll.analyzers.roofline import Fabric, load_fabric
from shardtoll.ledger.answers.forecast import Band, PlanPrice
from shardtoll.ledger.answers.training_plan import TrainingPlan


def price_plan(
    plan: TrainingPlan, network: Fabric | Network | None = None, constants: Constants | None = None
) -> PlanPrice:
    """Return what one optimizer step of the plan takes, with a band that holds eight of ten measured steps.

    `network`: a fabric, or bandwidths measured by node count; without it the plan's fabric, else the usual
    one
    of its GPU. Raises ShardtollError in one line where the layout cannot be: a world that does not divide, an
    unknown GPU, fabric or precision.
    """
    check_plan(plan)
    wire = _network(plan, network)
    parts = price_parts(plan, wire, constants)
    return _priced(plan, wire, parts)


def price_parts(plan: TrainingPlan, network: Network, constants: Constants | None = None) -> Parts:
    """Return the step's time and its parts, without bands."""
    constants = constants or fitted()
    traits = traits_of(plan.framework)
    groups = groups_of(plan, network)
    phases = phases_of(plan, traits, groups, constants)
    if plan.layout.sharding == "fsdp" and plan.layout.pp == 1 and plan.layout.dp * plan.layout.cp > 1:
        return _sharded_parts(plan, traits, groups, phases, constants)
    return staged_parts(plan, traits, groups, phases, constants)


def _network(plan: TrainingPlan, network: Fabric | Network | None) -> Network:
    if isinstance(network, Fabric):
        return _of_fabric(network)
    if network is not None:
        return network
    return _of_fabric(load_fabric(plan.fabric or usual_fabric(plan.gpu)))


def _of_fabric(fabric: Fabric) -> FabricNetwork:
    return FabricNetwork(fabric)


def _priced(plan: TrainingPlan, network: Network, parts: Parts) -> PlanPrice:
    layout = plan.layout
    width = half_width(plan, parts)
    step = Band(parts.step_ns, parts.step_ns * math.exp(-width[0]), parts.step_ns * math.exp(width[1]))
    tokens = step.inverse(1e9 * plan.tokens / layout.world_size)
    flops = model_flops_per_token(plan.model, plan.sequence)
    peak = 1e12 * card_of(plan.gpu).peak_tflops(DTYPES[plan.precision])
    mfu = tokens.scaled(flops / peak)
    repeated = {"none": 1.0, "selective": 1.15, "full": 4 / 3}[layout.checkpointing]
    assumptions = () if plan.fabric else (f"network {network.name}",)
    return PlanPrice(
        step, tokens, mfu, mfu.scaled(repeated), parts.compute_ns,
        {cause: value for cause, value in parts.exposed_ns.items() if value > 0},
        parts.bubble_ns, parts.optimizer_ns, parts.host_ns, network.name, assumptions,
    )  # fmt: skip


def half_width(plan: TrainingPlan, parts: Parts) -> tuple[float, float]:
    """Return the logarithms of how far the step may be faster and slower than expected."""
    numbers = widths()
    more = slope_width(parts, numbers)
    return _side("faster", plan, numbers) + more, _side("slower", plan, numbers) + more


def _side(name: str, plan: TrainingPlan, numbers: Mapping[str, float]) -> float:
    fitted = numbers.get(f"{name}.{band_scope(plan)}")
    if fitted is not None:
        return fitted
    return numbers[name] + (numbers["experts"] if plan.model.experts > 1 else 0.0)


def band_scope(plan: TrainingPlan) -> str:
    """Return whose errors the plan's band goes by: its framework's, those of experts apart."""
    framework = traits_of(plan.framework).name
    return f"{framework}.experts" if plan.model.experts > 1 else framework


def slope_width(parts: Parts, numbers: Mapping[str, float]) -> float:
    """Return the part of the width that grows with what is uncertain: host time, network, waits."""
    step = max(parts.step_ns, 1.0)
    exposed = (sum(parts.exposed_ns.values()) + parts.bubble_ns) / step
    width = numbers["host"] * parts.host_ns / step + numbers["net"] * parts.net_ns / step
    return width + numbers["exposed"] * exposed


def _sharded_parts(
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
