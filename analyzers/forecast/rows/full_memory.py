"""Steps whose memory may be full: the allocator frees and allocates again, and each time the device waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.analyzers.forecast.memory.memory_fits import fit_of
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.ledger.answers.forecast import Band, PlanPrice
from shardtoll.ledger.answers.plan_memory import PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan

LONGEST: Final = 8.5
"""How many times as long as expected such a step may take. Four runs of hf-ultrascale whose expected peak
exceeds the GPU took 2.6, 2.6, 4.5 and 8.3 times as long. Four runs are too few to expect any of these."""
_FITTED_ROWS: Final = 50
"""A framework's memory is known well enough to say so from this many measured rows on."""


def may_be_full(plan: TrainingPlan, memory: PlanMemory) -> bool:
    """Whether the expected peak exceeds what the driver reports of the GPU, if rows measured that peak."""
    if fit_of(recipe_of(plan).name).rows < _FITTED_ROWS:
        return False
    return memory.reserved.expected_bytes + memory.outside_bytes > capacity_of(plan.gpu)


def with_full_memory(price: PlanPrice) -> PlanPrice:
    """Return the price with the slow end of its bands as far away as full memory may put it."""

    def slower(band: Band) -> Band:
        return Band(band.expected, band.low / LONGEST, band.high)

    return replace(
        price,
        step_ns=Band(price.step_ns.expected, price.step_ns.low, price.step_ns.high * LONGEST),
        tokens_per_s_gpu=slower(price.tokens_per_s_gpu),
        mfu=price.mfu and slower(price.mfu),
        hfu=price.hfu and slower(price.hfu),
        assumptions=(*price.assumptions, "memory may be full: the allocator then frees and allocates anew"),
    )
