"""How a model's blocks are dealt to pipeline stages."""

from __future__ import annotations

import math

from shardtoll.analyzers.forecast.plan.phases import Phases
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import TrainingPlan


def stage_layers(plan: TrainingPlan, traits: Traits, phases: Phases) -> tuple[float, ...]:
    """Return blocks by stage: evenly if they divide; else, and under nanotron, the last stages get fewer.

    nanotron counts the head as so many blocks as it costs, and fills stages in turn.
    """
    stages, layers = plan.layout.pp, plan.model.layers
    if stages == 1:
        return (layers,)
    if layers % stages == 0 and traits.name != "nanotron":
        return (layers / stages,) * stages
    block = phases.block_forward.compute_ns + phases.block_backward.compute_ns
    head = (phases.head_forward.compute_ns + phases.head_backward.compute_ns) / block if block else 0.0
    each = math.ceil((layers + (head if traits.name == "nanotron" else 0.0)) / stages)
    dealt, left = [], layers
    for _ in range(stages):
        dealt.append(float(min(each, left)))
        left -= int(dealt[-1])
    dealt[-1] += left
    return tuple(dealt)
