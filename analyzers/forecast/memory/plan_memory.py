"""Peak memory of a training plan."""

from __future__ import annotations

from shardtoll.ledger.answers.plan_memory import PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan


def plan_memory(plan: TrainingPlan, capacity_bytes: int | None = None) -> PlanMemory:
    """Forecast the peak memory of the plan's rank that needs most. `capacity_bytes`: the GPU's, None if unknown."""
    raise NotImplementedError(plan, capacity_bytes)
