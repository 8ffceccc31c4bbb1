"""How a model's blocks are dealt to pipeline stages."""

from __future__ import annotations

import math

from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.analyzers.shared.stage_dealing import dealt_by_weight
from shardtoll.ledger.answers.training_plan import TrainingPlan


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
