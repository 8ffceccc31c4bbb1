"""Steps whose memory is full: the allocator frees and allocates again, and each time the device waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.memory.memory_fits import fit_of
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.analyzers.forecast.memory.reported import reported_bytes
from shardtoll.ledger.answers.forecast import Band, PlanPrice
from shardtoll.ledger.answers.plan_memory import PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan

RETRIES: Final = (4.0, 2.5, 8.5)
"""Factor on such a step, with its ends. Four runs of hf-ultrascale have an expected peak above the memory:
they took 2.6, 2.6, 4.5 and 8.3 times as long as forecast. No other of its 220 has one. Fitted to the four."""
_FITTED_ROWS: Final = 50
"""A framework's memory is known well enough to say so from this many measured rows on."""


def retries(plan: TrainingPlan, memory: PlanMemory) -> bool:
    """Whether the expected peak exceeds what the driver reports of the GPU, where rows measured that peak."""
    if fit_of(recipe_of(plan).name).rows < _FITTED_ROWS:
        return False
    capacity = reported_bytes(card_of(plan.gpu).gpu.memory_bytes.value)
    return memory.reserved.expected_bytes + memory.outside_bytes > capacity


def with_retries(price: PlanPrice) -> PlanPrice:
    """Return the price of a step whose memory is full."""
    middle, low, high = RETRIES
    step, rate = price.step_ns, price.tokens_per_s_gpu
    longer = Band(step.expected * middle, step.low * low, step.high * high)

    def slower(band: Band) -> Band:
        return Band(band.expected / middle, band.low / high, band.high / low)

    return replace(
        price,
        step_ns=longer,
        tokens_per_s_gpu=slower(rate),
        mfu=price.mfu and slower(price.mfu),
        hfu=price.hfu and slower(price.hfu),
        other_ns=price.other_ns + longer.expected - step.expected,
        assumptions=(*price.assumptions, "memory is full: the allocator frees and allocates in each step"),
    )
