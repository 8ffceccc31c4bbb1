"""The share of a block that one rank of a plan holds."""

from __future__ import annotations

from shardtoll.analyzers.forecast.plan.block import Share
from shardtoll.analyzers.forecast.plan.traits import Traits
from shardtoll.ledger.answers.training_plan import TrainingPlan


def share_of(plan: TrainingPlan, traits: Traits) -> Share:
    """Return what one rank holds of a block."""
    layout = plan.layout
    return Share(
        max(1, layout.micro_batch * plan.sequence // layout.cp),
        plan.sequence,
        layout.micro_batch,
        layout.tp,
        layout.cp,
        layout.ep,
        plan.expert_tp,
        layout.tp > 1 and (layout.sequence_parallel or traits.sequence_parallel),
    )
