"""How a model's blocks are dealt to pipeline stages."""

from __future__ import annotations

import math

from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import ModelShape, TrainingPlan


def stage_layers(plan: TrainingPlan, traits: Traits) -> tuple[float, ...]:
    """Return blocks by stage: evenly if they divide; else the last stages get fewer.

    nanotron deals them by weights (`_by_weight`).
    """
    stages, layers = plan.layout.pp, plan.model.layers
    if stages == 1:
        return (layers,)
    if traits.name == "nanotron":
        return _by_weight(plan.model, stages)
    if layers % stages == 0:
        return (layers / stages,) * stages
    each = math.ceil(layers / stages)
    dealt, left = [], layers
    for _ in range(stages):
        dealt.append(float(min(each, left)))
        left -= int(dealt[-1])
    dealt[-1] += left
    return tuple(dealt)


def _by_weight(model: ModelShape, stages: int) -> tuple[float, ...]:
    """Deal blocks as nanotron does: a stage takes blocks until all so far weigh more than its equal share.

    A block weighs its parameters, the head those of the embedding (nanotron's `get_block_compute_costs`
    and `build_model`). So the first stages get more, and the last one may keep the head alone.
    """
    block = 4.0 * model.heads * model.head_width * model.hidden + 3.0 * model.ffn * model.hidden
    whole = model.layers * block + model.vocab * model.hidden
    dealt = [0.0] * stages
    stage = 0
    for count in range(1, model.layers + 1):
        dealt[stage] += 1.0
        if stage < stages - 1 and count * block > whole * (stage + 1) / stages:
            stage += 1
    return tuple(dealt)
