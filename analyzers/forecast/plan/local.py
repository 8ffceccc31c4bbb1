"""What one rank holds of a model, and what its optimizer takes."""

from __future__ import annotations

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.phases import share_of
from shardtoll.analyzers.forecast.plan.sizes import (
    expert_columns,
    feed_forward_parameters,
    parameters,
)
from shardtoll.analyzers.forecast.plan.traits import Traits, traits_of
from shardtoll.ledger.answers.training_plan import TrainingPlan


def _bandwidth(plan: TrainingPlan, traits: Traits, constants: Constants) -> float:
    return card_of(plan.gpu).memory_gbps * constants.get("memory", f"{traits.name}.{plan.gpu}", traits.name)


def local_parameters(plan: TrainingPlan, layers: float, *, ends: float) -> float:
    """Return parameters of one rank before sharding over replicas; `ends`: how many embedding matrices it
    has."""
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


def optimizer_ns(plan: TrainingPlan, traits: Traits, constants: Constants, count: float) -> float:
    """Return what clip and optimizer step take for that many parameters."""
    return count * traits.optimizer_bytes / _bandwidth(plan, traits, constants)
