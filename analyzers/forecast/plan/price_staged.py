"""The parts of a step in stages, or in one whose replicas keep all parameters."""

from __future__ import annotations

import math
from typing import TypeAlias

from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.graphs.staged_step import StagedTimes, Topology, staged_step_ns
from shardtoll.analyzers.forecast.plan.groups import Groups
from shardtoll.analyzers.forecast.plan.local import local_parameters, optimizer_ns, sharded_parameters
from shardtoll.analyzers.forecast.plan.parts import Parts
from shardtoll.analyzers.forecast.plan.passes import EMPTY, Phase
from shardtoll.analyzers.forecast.plan.phases import Phases
from shardtoll.analyzers.forecast.plan.rank_share import share_of
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.analyzers.shared.stage_dealing import dealt_by_weight
from shardtoll.ledger.answers.training_plan import TrainingPlan

Pass: TypeAlias = tuple[Phase, ...]
"""Work that a rank does one after another in a pass: its blocks, and the embedding or the head."""


def staged_parts(
    plan: TrainingPlan, traits: Traits, groups: Groups, phases: Phases, constants: Constants
) -> Parts:
    """Return the step of any plan but one with full sharding and one stage."""
    layout = plan.layout
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    layers = stage_layers(plan, traits)
    passes = [_stage_passes(phases, layers, stage, layout.chunks) for stage in range(layout.pp)]
    local = [local_parameters(plan, layers[stage], ends=_ends(plan, stage)) for stage in range(layout.pp)]
    shards = 1 if layout.sharding == "ddp" else layout.dp * layout.cp
    held = [
        sharded_parameters(plan, layers[stage], ends=_ends(plan, stage), shards=shards)
        for stage in range(layout.pp)
    ]
    reduce, gather = _replicas(plan, traits, groups, constants, local)
    optimizer = [optimizer_ns(plan, traits, constants, count) for count in held]
    share = share_of(plan, traits)
    sent = plan.width_bytes * share.tokens * plan.model.hidden / (share.tp if share.sequence_parallel else 1)
    send = 0.0
    if layout.pp > 1:
        send = groups.time("send", sent, groups.pair, constants, *scopes).expected_ns
        send += 1000 * constants.get("send_us", *scopes)
    fsdp = layout.sharding == "fsdp"
    topology = Topology(
        layout.pp, layout.chunks, max(reduce) > 0, max(gather) > 0, traits.overlaps_data or fsdp,
        traits.gathers_early or fsdp, traits.overlaps_pipeline,
        any(word in layout.schedule.casefold() for word in ("afab", "gpipe")),
    )  # fmt: skip
    times = StagedTimes(
        topology,
        tuple(tuple(_time_ns(each) for each in stage[0]) for stage in passes),
        tuple(tuple(_time_ns(each) for each in stage[1]) for stage in passes),
        send, tuple(reduce), tuple(gather), tuple(optimizer),
    )  # fmt: skip
    step = staged_step_ns(times, layout.accumulation, constants.get("contention", *scopes))
    sends = 0.0
    if layout.pp > 1 and not topology.sends_beside:
        sends = send * layout.accumulation * (2 if layout.pp > 2 or layout.chunks > 1 else 1) * layout.chunks
    return _parts(plan, groups, constants, traits, passes, optimizer, step, sends, max(reduce) + max(gather))


def _parts(
    plan: TrainingPlan,
    groups: Groups,
    constants: Constants,
    traits: Traits,
    passes: list[tuple[list[Pass], list[Pass]]],
    optimizer: list[float],
    step: float,
    sends: float,
    replicas: float,
) -> Parts:
    layout = plan.layout
    fixed = 1e6 * constants.get("step_ms", f"{traits.name}.{plan.gpu}", traits.name)
    took = [sum(_time_ns(each) for each in (*stage[0], *stage[1])) for stage in passes]
    busiest = _total(passes[took.index(max(took))])
    busy = layout.accumulation * max(took)
    exposed = {cause: layout.accumulation * value for cause, value in busiest.exposed_ns.items()}
    # The busiest rank waits for messages no longer than it waits: others hide in its gaps.
    waits = max(0.0, step - busy - max(optimizer))
    sends = min(sends, waits)
    rest = waits - sends
    # Replicas come after the pipeline's own gaps: at most what their collectives take is theirs.
    exposed["data"] = min(rest, replicas) if layout.pp == 1 else min(rest, replicas, 0.5 * step)
    exposed["pipeline"] = sends
    bubble = rest - exposed["data"] if layout.pp > 1 else 0.0
    compute = layout.accumulation * busiest.compute_ns
    host = max(0.0, busy - compute - layout.accumulation * sum(busiest.exposed_ns.values()))
    net = exposed["data"] if groups.data.spans_nodes else 0.0
    net += sends if groups.pair.spans_nodes else 0.0
    return Parts(
        step + fixed,
        compute,
        exposed,
        bubble,
        max(optimizer),
        host + fixed,
        net + groups.beyond_nodes_ns(exposed),
    )


def _time_ns(parts: Pass) -> float:
    """Return how long a pass takes. Launches of blocks do not hide behind the head: loss is waited for."""
    return sum(each.time_ns for each in parts)


def _total(stage: tuple[list[Pass], list[Pass]]) -> Phase:
    total = EMPTY
    for parts in (*stage[0], *stage[1]):
        for each in parts:
            total = total.plus(each)
    return total


def _ends(plan: TrainingPlan, stage: int) -> float:
    if plan.layout.pp == 1:
        return 1 if plan.model.tied else 2
    return 1 if stage in (0, plan.layout.pp - 1) else 0


def _stage_passes(
    phases: Phases, layers: tuple[float, ...], stage: int, chunks: int
) -> tuple[list[Pass], list[Pass]]:
    """Return forward and backward of each chunk of a stage."""
    per_chunk = layers[stage] / chunks
    forward: list[Pass] = [(EMPTY.plus(phases.block_forward, per_chunk),) for _ in range(chunks)]
    backward: list[Pass] = [(EMPTY.plus(phases.block_backward, per_chunk),) for _ in range(chunks)]
    if stage == 0:
        forward[0] = (phases.embedding, *forward[0])
    if stage == len(layers) - 1:
        forward[-1] = (*forward[-1], phases.head_forward)
        backward[-1] = (phases.head_backward, *backward[-1])
    return forward, backward


def _replicas(
    plan: TrainingPlan, traits: Traits, groups: Groups, constants: Constants, local: list[float]
) -> tuple[list[float], list[float]]:
    """Return by stage what reducing gradients and gathering parameters take."""
    layout = plan.layout
    scopes = (f"{traits.name}.{plan.gpu}", traits.name)
    replicas = layout.dp * layout.cp
    shards = 1 if layout.sharding == "ddp" else replicas
    reduce, gather = [], []
    for count in local:
        grads = count * max(traits.gradient_bytes, plan.width_bytes)
        op = "all_reduce" if layout.sharding == "ddp" else "reduce_scatter"
        took = groups.time(op, grads, groups.data, constants, *scopes).expected_ns if replicas > 1 else 0.0
        reduce.append(took)
        gathered = 0.0
        if shards > 1:
            gathered = groups.time(
                "all_gather", plan.width_bytes * count, groups.data, constants, *scopes
            ).expected_ns
        gather.append(gathered)
    return reduce, gather


def stage_layers(plan: TrainingPlan, traits: Traits) -> tuple[float, ...]:
    """Return blocks by stage: evenly if they divide; else the last stages get fewer.

    nanotron deals them by weights (`dealt_by_weight`).
    """
    stages, layers = plan.layout.pp, plan.model.layers
    if stages == 1:
        return (layers,)
    if traits.name == "nanotron":
        return tuple(map(float, dealt_by_weight(plan.model, stages)))
    if layers % stages == 0:
        return (layers / stages,) * stages
    each = math.ceil(layers / stages)
    dealt, left = [], layers
    for _ in range(stages):
        dealt.append(float(min(each, left)))
        left -= int(dealt[-1])
    dealt[-1] += left
    return tuple(dealt)
