"""Forward and backward of one block and of the head on one rank: device, host and collectives, in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.block import Terms, block_terms, head_terms
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.groups import Groups
from shardtoll.analyzers.forecast.plan.local import local_experts, sharded_parameters
from shardtoll.analyzers.forecast.plan.passes import Phase
from shardtoll.analyzers.forecast.plan.rank_share import share_of
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import TrainingPlan

_USUAL_WATTS: Final = {"h100-sxm": 700.0, "h200-sxm": 700.0, "a100-sxm-80gb": 400.0, "a100-sxm-40gb": 400.0}
"""Board power as sold (NVIDIA data sheets)."""

_BACKWARD_LAUNCHES: Final = 1.2
"""Host time of a backward over its forward's. Autograd launches from C++: about twice the kernels, in little
more time."""

DTYPES: Final = {
    "fp32": "float32",
    "tf32": "tf32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "fp4": "float4",
}


@dataclass(frozen=True, slots=True)
class Phases:
    """Time of a rank's blocks and its head for one micro-batch."""

    block_forward: Phase
    block_backward: Phase
    head_forward: Phase
    head_backward: Phase
    embedding: Phase


def phases_of(plan: TrainingPlan, traits: Traits, groups: Groups, constants: Constants) -> Phases:
    """Return the passes of one micro-batch."""
    share = share_of(plan, traits)
    dtype = DTYPES[plan.precision]
    terms = block_terms(plan.model, share, plan.gpu, dtype, traits)
    head = head_terms(
        plan.model, share, plan.gpu, traits, dtype if plan.precision in ("fp32", "tf32") else "bfloat16"
    )
    forward = _pass(plan, traits, constants, terms, 0)
    backward = _pass(plan, traits, constants, terms, 1)
    forward = forward.plus(groups.block_collectives(plan, share, traits, constants, "forward"))
    backward = backward.plus(groups.block_collectives(plan, share, traits, constants, "backward"))
    checkpointing = plan.layout.checkpointing
    if checkpointing == "full":
        backward = backward.plus(forward, constants.get("recompute", traits.name))
    elif checkpointing == "selective":
        backward = backward.plus(forward, constants.get("selective", traits.name))
    if traits.accumulate_bytes and plan.layout.accumulation > 1:
        layout = plan.layout
        # Shards get their gradients scattered before they add them up.
        shards = (layout.shard_size or layout.dp) * layout.cp if layout.sharding == "fsdp" else 1
        weight = constants.get("expert_gradient", traits.name)
        local = sharded_parameters(plan, 1, ends=0, shards=shards)
        local += (weight - 1) * local_experts(plan, 1) / plan.expert_shards(shards)
        moved = local * traits.accumulate_bytes / _bandwidth(plan, constants, traits)
        backward = backward.plus(Phase(moved, 0.0, {}))
    head_forward, head_backward = (_pass(plan, traits, constants, head, at, head=True) for at in (0, 1))
    hidden = 2.0 * share.tokens * plan.model.hidden
    # Its backward is counted here too: a pipeline's first stage does both.
    launches = traits.embedding_kernels * (1 + _BACKWARD_LAUNCHES)
    lookup = Phase(
        4 * hidden / _bandwidth(plan, constants, traits),
        1000 * _host_us(plan, traits, constants) * launches,
        {},
    )
    summed, loss = groups.end_collectives(plan, share, traits, constants)
    return Phases(forward, backward, head_forward.plus(loss), head_backward.plus(summed), lookup.plus(summed))


def power_share(plan: TrainingPlan) -> float:
    """Return the share of its rates that a GPU keeps under the power limit that the plan notes, in W.

    Clocks go with about the square root of the power limit around the usual one. This lies between the cube
    root that dynamic power alone gives, and the straight line of a card at its limit.
    """
    watts = plan.notes.get("watts")
    usual = _USUAL_WATTS.get(plan.gpu)
    return 1.0 if not watts or not usual else min(1.0, (float(watts) / usual) ** 0.5)


def _bandwidth(plan: TrainingPlan, constants: Constants, traits: Traits) -> float:
    """Return GB/s, so bytes per ns, that streamed operators reach."""
    stated = plan.notes.get("memory_gbps")
    return (float(stated) if stated else card_of(plan.gpu).memory_gbps) * constants.get(
        "memory", f"{traits.name}.{plan.gpu}", traits.name
    )


def _pass(
    plan: TrainingPlan, traits: Traits, constants: Constants, terms: Terms, at: int, *, head: bool = False
) -> Phase:
    kind = "float8" if plan.precision in ("fp8", "fp4") and not head else "bfloat16"
    sustained = constants.get(
        "sustained",
        f"{traits.name}.{plan.gpu}.{kind}",
        f"{traits.name}.{plan.gpu}",
        f"{plan.gpu}.{kind}",
        plan.gpu,
    )
    sustained *= power_share(plan)
    attention = power_share(plan) * constants.get(
        "attention", f"{traits.name}.{plan.gpu}", traits.name, plan.gpu
    )
    streamed = terms.bytes[at] / _bandwidth(plan, constants, traits)
    kernels = terms.kernels
    if plan.compiled:
        streamed *= 0.5
        kernels = round(kernels * 0.4)
    # No step sustains more than the best matmul that was measured alone.
    matmul_ns = max(terms.matmul_ns[at], terms.least_ns[at] * sustained)
    if at and plan.notes.get("frozen"):
        # Frozen weights need no gradient: only the half of backward that goes to the inputs.
        matmul_ns /= 2
    compute = matmul_ns / sustained + terms.attention_ns[at] / attention + streamed
    if head:
        compute *= constants.get("head", f"{traits.name}.{plan.gpu}", traits.name)
    host = 1000 * _host_us(plan, traits, constants) * kernels * (_BACKWARD_LAUNCHES if at else 1.0)
    return Phase(compute, host, {})


def _host_us(plan: TrainingPlan, traits: Traits, constants: Constants) -> float:
    return constants.get("host_us", f"{traits.name}.{plan.gpu}", traits.name, plan.gpu)
