"""The price of a plan: its blocks, collectives and schedule put together by the event engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.band import Known, half_width
from shardtoll.analyzers.forecast.plan.constants import Constants, fitted
from shardtoll.analyzers.forecast.plan.counted import (
    expert_columns,
    feed_forward_parameters,
    model_flops_per_token,
    parameters,
)
from shardtoll.analyzers.forecast.plan.groups import Groups, groups_of
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, Network
from shardtoll.analyzers.forecast.plan.phases import DTYPES, EMPTY, Phase, Phases, phases_of, share_of
from shardtoll.analyzers.forecast.plan.sharded_step import ShardedTimes, sharded_step_ns
from shardtoll.analyzers.forecast.plan.staged_step import StagedTimes, staged_step
from shardtoll.analyzers.forecast.plan.stages import stage_layers
from shardtoll.analyzers.forecast.plan.traits import Traits, traits_of
from shardtoll.analyzers.roofline import Fabric, load_fabric
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.forecast import Band, PlanPrice
from shardtoll.ledger.answers.training_plan import TrainingPlan

_DEFAULT_FABRICS = {
    "a100": "a100x8-ib200",
    "h100": "h100x8-ib400",
    "h800": "h100x8-ib400",
    "h200": "h200x8-ib400",
    "b200": "b200x8-ib400",
    "b300": "b300x8-ib800",
    "gb200": "gb200-nvl72-ib400",
    "gb300": "gb300-nvl72",
    "mi300x": "mi300x8-roce400",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """A step's time and what it consists of, in ns, before any band."""

    step_ns: float
    compute_ns: float
    exposed_ns: dict[str, float]
    bubble_ns: float
    optimizer_ns: float
    host_ns: float
    """Part of the step that the host decides."""
    net_ns: float
    """Part of the exposed time whose collectives span nodes."""


def price_plan(
    plan: TrainingPlan, network: Fabric | Network | None = None, constants: Constants | None = None
) -> PlanPrice:
    """Return what one optimizer step of the plan takes, with a band that holds eight of ten measured steps.

    `network`: a fabric, or bandwidths measured by node count; without it the plan's fabric, else the usual one
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
        return _sharded(plan, traits, groups, phases, constants)
    return _staged(plan, traits, groups, phases, constants)


def check_plan(plan: TrainingPlan) -> None:
    """Raise UsageError in one line for a plan that cannot be."""
    layout, model = plan.layout, plan.model
    card_of(plan.gpu)
    if plan.precision not in DTYPES:
        raise UsageError(f"unknown precision {plan.precision!r:.40}", f"name one of {', '.join(DTYPES)}")
    if layout.ep > 1 and (layout.dp * layout.cp * layout.tp) % layout.ep:
        raise UsageError(
            f"expert parallel {layout.ep} does not divide {layout.dp * layout.cp * layout.tp} ranks of a stage",
            "let it divide data x context x tensor parallel",
        )
    if layout.pp * layout.chunks > model.layers + 2:
        raise UsageError(
            f"{layout.pp} x {layout.chunks} pipeline stages for {model.layers} blocks",
            "give each stage one block at least",
        )
    if layout.cp > plan.sequence:
        raise UsageError(f"context parallel {layout.cp} of {plan.sequence} tokens", "use a smaller one")


def _network(plan: TrainingPlan, network: Fabric | Network | None) -> Network:
    if isinstance(network, Fabric):
        return _of_fabric(network)
    if network is not None:
        return network
    return _of_fabric(load_fabric(plan.fabric or usual_fabric(plan.gpu)))


@cache
def _of_name(name: str) -> FabricNetwork:
    return FabricNetwork(load_fabric(name))


def _of_fabric(fabric: Fabric) -> FabricNetwork:
    return FabricNetwork(fabric)


def usual_fabric(gpu: str) -> str:
    """Return the fabric that machines of this GPU usually have; UsageError if none is usual."""
    for start in sorted(_DEFAULT_FABRICS, key=len, reverse=True):
        if gpu.startswith(start):
            return _DEFAULT_FABRICS[start]
    raise UsageError(
        f"no usual fabric of GPU {gpu!r:.40}", "name one with --fabric; `shardtoll fabrics` lists them"
    )


def _bandwidth(plan: TrainingPlan, traits: Traits, constants: Constants) -> float:
    return card_of(plan.gpu).memory_gbps * constants.get("memory", f"{traits.name}.{plan.gpu}", traits.name)


def local_parameters(plan: TrainingPlan, layers: float, *, ends: float) -> float:
    """Return parameters of one rank before sharding over replicas; `ends`: how many embedding matrices it has."""
    model, layout = plan.model, plan.layout
    share = share_of(plan, traits_of(plan.framework))
    whole = parameters(model) - (1 if model.tied else 2) * model.vocab * model.hidden
    experts = 0.0
    if model.experts > 1:
        dense = min(model.dense_layers, model.layers)
        experts = (
            (model.layers - dense) * model.experts * feed_forward_parameters(model, expert_columns(model))
        )
    per_layer = (whole - experts) / layout.tp + experts / (layout.ep * share.expert_tp)
    return per_layer * layers / model.layers + ends * model.vocab * model.hidden / layout.tp


def _sharded(
    plan: TrainingPlan, traits: Traits, groups: Groups, phases: Phases, constants: Constants
) -> Parts:
    layout, model = plan.layout, plan.model
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    block = local_parameters(plan, 1, ends=0)
    root = local_parameters(plan, 0, ends=1 if model.tied else 2)
    wide = 2 if plan.precision != "fp32" else 4

    def timed(op: str, count: float, width: int) -> float:
        one = groups.time(op, count * width, groups.data, constants, *scopes).expected_ns
        return one + 1000 * constants.get("call_us", *scopes)

    reduce_width = traits.gradient_bytes
    optimizer = _optimizer(plan, traits, constants, (block * model.layers + root) / (layout.dp * layout.cp))
    times = ShardedTimes(
        phases,
        timed("all_gather", block, wide),
        timed("reduce_scatter", block, reduce_width),
        timed("all_gather", root, wide),
        timed("reduce_scatter", root, reduce_width),
        regathers="grad" not in plan.notes.get("sharding", ""),
        scatters_each=True,
        optimizer_ns=optimizer,
    )
    step = sharded_step_ns(times, model.layers, layout.accumulation, constants.get("contention", *scopes))
    one = phases.embedding.plus(phases.block_forward, model.layers).plus(phases.block_backward, model.layers)
    one = one.plus(phases.head_forward).plus(phases.head_backward)
    busy = layout.accumulation * one.time_ns
    exposed = {cause: layout.accumulation * value for cause, value in one.exposed_ns.items()}
    exposed["data"] = max(0.0, step - busy - optimizer)
    fixed = 1e6 * constants.get("step_ms", *scopes)
    compute = layout.accumulation * one.compute_ns
    host = max(0.0, busy - compute - sum(one.exposed_ns.values()) * layout.accumulation)
    net = exposed["data"] if groups.data.spans_nodes else 0.0
    return Parts(step + fixed, compute, exposed, 0.0, optimizer, host + fixed, net + _net(groups, exposed))


def _optimizer(plan: TrainingPlan, traits: Traits, constants: Constants, count: float) -> float:
    return count * traits.optimizer_bytes / _bandwidth(plan, traits, constants)


def _net(groups: Groups, exposed: dict[str, float]) -> float:
    places = {"tensor": groups.tensor, "context": groups.context, "expert": groups.expert}
    return sum(exposed.get(cause, 0.0) for cause, place in places.items() if place.spans_nodes)


def _staged(
    plan: TrainingPlan, traits: Traits, groups: Groups, phases: Phases, constants: Constants
) -> Parts:
    layout = plan.layout
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    layers = stage_layers(plan, traits, phases)
    passes = [_stage_passes(phases, layers, stage, layout.chunks) for stage in range(layout.pp)]
    local = [local_parameters(plan, layers[stage], ends=_ends(plan, stage)) for stage in range(layout.pp)]
    reduce, gather, optimizer = _replicas(plan, traits, groups, constants, local)
    share = share_of(plan, traits)
    sent = 2.0 * share.tokens * plan.model.hidden / (share.tp if share.sequence_parallel else 1)
    send = 0.0
    if layout.pp > 1:
        send = groups.time("send", sent, groups.pair, constants, *scopes).expected_ns
        send += 1000 * constants.get("send_us", *scopes)
    fsdp = layout.sharding == "fsdp"
    times = StagedTimes(
        tuple(tuple(each.time_ns for each in stage[0]) for stage in passes),
        tuple(tuple(each.time_ns for each in stage[1]) for stage in passes),
        send,
        tuple(reduce),
        tuple(gather),
        tuple(optimizer),
        reduces_beside=traits.overlaps_data or fsdp,
        gathers_beside=traits.gathers_early or fsdp,
        sends_beside=traits.overlaps_pipeline,
        forward_first="afab" in layout.schedule.casefold() or "gpipe" in layout.schedule.casefold(),
    )
    result = staged_step(times, layout.accumulation, constants.get("contention", *scopes))
    return _parts(plan, groups, constants, traits, passes, optimizer, result.step_ns, result.busy_ns, result.sends_ns,
                  max(reduce) + max(gather))  # fmt: skip


def _parts(
    plan: TrainingPlan,
    groups: Groups,
    constants: Constants,
    traits: Traits,
    passes: list[tuple[list[Phase], list[Phase]]],
    optimizer: list[float],
    step: float,
    busy: float,
    sends: float,
    replicas: float,
) -> Parts:
    layout = plan.layout
    fixed = 1e6 * constants.get("step_ms", f"{traits.name}.{plan.gpu}", traits.name)
    whole = [_total(stage) for stage in passes]
    busiest = max(whole, key=lambda each: each.time_ns)
    exposed = {cause: layout.accumulation * value for cause, value in busiest.exposed_ns.items()}
    rest = max(0.0, step - busy - max(optimizer) - sends)
    # Replicas come after the pipeline's own gaps: at most what their collectives take is theirs.
    exposed["data"] = min(rest, replicas) if layout.pp == 1 else min(rest, replicas, 0.5 * step)
    exposed["pipeline"] = sends
    bubble = rest - exposed["data"] if layout.pp > 1 else 0.0
    compute = layout.accumulation * busiest.compute_ns
    host = max(0.0, busy - compute - layout.accumulation * sum(busiest.exposed_ns.values()))
    net = exposed["data"] if groups.data.spans_nodes else 0.0
    net += sends if groups.pair.spans_nodes else 0.0
    return Parts(
        step + fixed, compute, exposed, bubble, max(optimizer), host + fixed, net + _net(groups, exposed)
    )


def _total(stage: tuple[list[Phase], list[Phase]]) -> Phase:
    total = EMPTY
    for each in (*stage[0], *stage[1]):
        total = total.plus(each)
    return total


def _ends(plan: TrainingPlan, stage: int) -> float:
    if plan.layout.pp == 1:
        return 1 if plan.model.tied else 2
    return 1 if stage in (0, plan.layout.pp - 1) else 0


def _stage_passes(
    phases: Phases, layers: tuple[float, ...], stage: int, chunks: int
) -> tuple[list[Phase], list[Phase]]:
    """Return forward and backward of each chunk of a stage."""
    per_chunk = layers[stage] / chunks
    forward = [EMPTY.plus(phases.block_forward, per_chunk) for _ in range(chunks)]
    backward = [EMPTY.plus(phases.block_backward, per_chunk) for _ in range(chunks)]
    if stage == 0:
        forward[0] = forward[0].plus(phases.embedding)
    if stage == len(layers) - 1:
        forward[-1] = forward[-1].plus(phases.head_forward)
        backward[-1] = backward[-1].plus(phases.head_backward)
    return forward, backward


def _replicas(
    plan: TrainingPlan, traits: Traits, groups: Groups, constants: Constants, local: list[float]
) -> tuple[list[float], list[float], list[float]]:
    """Return by stage what reducing gradients, gathering parameters and the optimizer take."""
    layout = plan.layout
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    replicas = layout.dp * layout.cp
    shards = 1 if layout.sharding == "ddp" else replicas
    reduce, gather, optimizer = [], [], []
    for count in local:
        grads = count * traits.gradient_bytes
        op = "all_reduce" if layout.sharding == "ddp" else "reduce_scatter"
        took = groups.time(op, grads, groups.data, constants, *scopes).expected_ns if replicas > 1 else 0.0
        reduce.append(took)
        gathered = 0.0
        if shards > 1:
            gathered = groups.time("all_gather", 2.0 * count, groups.data, constants, *scopes).expected_ns
        gather.append(gathered)
        optimizer.append(_optimizer(plan, traits, constants, count / shards))
    return reduce, gather, optimizer


def _priced(plan: TrainingPlan, network: Network, parts: Parts) -> PlanPrice:
    layout = plan.layout
    width = half_width(plan, parts, Known.of(plan))
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
