"""One rank's part of a model, and the time of its optimizer."""

from __future__ import annotations

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.constants import Constants
from shardtoll.analyzers.forecast.plan.sizes import (
    expert_columns,
    feed_forward_parameters,
    parameters,
)
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import ModelShape, TrainingPlan


def _bandwidth(plan: TrainingPlan, traits: Traits, constants: Constants) -> float:
    return card_of(plan.gpu).memory_gbps * constants.get("memory", f"{traits.name}.{plan.gpu}", traits.name)


def local_parameters(plan: TrainingPlan, layers: float, *, ends: float) -> float:
    """Return parameters of one rank before sharding over replicas; `ends`: how many embedding matrices it
    has."""
    model, layout = plan.model, plan.layout
    whole = parameters(model) - (1 if model.tied else 2) * model.vocab * model.hidden
    shared = (whole - _expert_parameters(model)) / layout.tp * layers / model.layers
    return shared + local_experts(plan, layers) + ends * model.vocab * model.hidden / layout.tp


def local_experts(plan: TrainingPlan, layers: float) -> float:
    """Return how many of these parameters are experts'."""
    held = _expert_parameters(plan.model) / (plan.layout.ep * plan.expert_tp)
    return held * layers / plan.model.layers


def sharded_parameters(plan: TrainingPlan, layers: float, *, ends: float, shards: int) -> float:
    """Return `local_parameters` after sharding over so many replicas."""
    experts = local_experts(plan, layers)
    others = local_parameters(plan, layers, ends=ends) - experts
    return others / shards + experts / plan.expert_shards(shards)


def _expert_parameters(model: ModelShape) -> int:
    if model.experts <= 1:
        return 0
    sparse = model.layers - min(model.dense_layers, model.layers)
    return sparse * model.experts * feed_forward_parameters(model, expert_columns(model))


def optimizer_ns(plan: TrainingPlan, traits: Traits, constants: Constants, count: float) -> float:
    """Return what clip and optimizer step take for that many parameters."""
    return count * traits.optimizer_bytes / _bandwidth(plan, traits, constants)
