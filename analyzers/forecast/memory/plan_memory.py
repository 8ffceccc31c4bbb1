"""Peak memory of a training plan."""

from __future__ import annotations

from shardtoll.analyzers.forecast.memory.allocator import AllocatorOptions, replay
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.analyzers.forecast.memory.step import RankStep
from shardtoll.ledger.answers.plan_memory import MemoryBand, PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan


def raw_peak(plan: TrainingPlan, stage: int):
    events = RankStep(plan, recipe_of(plan), stage).events()
    return replay(events)
