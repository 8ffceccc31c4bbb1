"""Prices scaled by a measured row: the one that is most like the plan, on the same GPU and framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shardtoll.analyzers.forecast.plan.constants import widths
from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.plan.traits import traits_of
from shardtoll.analyzers.forecast.rows.measured_step import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, read_row
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.forecast import Band, PlanPrice
from shardtoll.ledger.answers.training_plan import TrainingPlan

_LESS: Final = 0.75
"""Each difference between the plan and the measured one leaves this much of the measured correction."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """One measured step with the forecast's own price of it."""

    number: int
    plan: TrainingPlan
    log_ratio: float
    """Logarithm of measured over predicted step time."""


def anchors_of(rows: Sequence[Mapping[str, str]]) -> list[Anchor]:
    """Return the rows that have a measured time and a price."""
    anchors = []
    for number, row in enumerate(rows, start=1):
        try:
            read = read_row(row)
            measured = measured_step_ns(row, read.plan)
            if measured is None:
                continue
            price = price_plan(read.plan, read.network)
        except (Abstain, ShardtollError):
            continue
        anchors.append(Anchor(number, read.plan, math.log(measured / price.step_ns.expected)))
    return anchors


def differences(one: TrainingPlan, two: TrainingPlan) -> int | None:
    """Return in how many ways two plans differ that matter to a correction; None on another GPU or
    framework."""
    if one.gpu != two.gpu or traits_of(one.framework).name != traits_of(two.framework).name:
        return None
    a, b = one.layout, two.layout
    pairs = (
        (one.model.name, two.model.name),
        (one.precision, two.precision),
        (one.compiled, two.compiled),
        (a.async_tp, b.async_tp),
        (a.sharding, b.sharding),
        (a.checkpointing, b.checkpointing),
        ((a.tp, a.pp, a.cp, a.ep), (b.tp, b.pp, b.cp, b.ep)),
        ((a.micro_batch, one.sequence), (b.micro_batch, two.sequence)),
    )
    return sum(left != right for left, right in pairs)


def anchor_for(plan: TrainingPlan, anchors: Sequence[Anchor]) -> Anchor | None:
    """Return the anchor that is most like the plan; of several the nearest in GPUs; None if none fits."""
    ranked = [
        (distance, abs(math.log(each.plan.layout.world_size / plan.layout.world_size)), each.number, each)
        for each in anchors
        if (distance := differences(plan, each.plan)) is not None
    ]
    return min(ranked, key=lambda each: each[:3])[3] if ranked else None


def calibrated(plan: TrainingPlan, price: PlanPrice, anchor: Anchor) -> PlanPrice:
    """Return the price scaled by the anchor's correction, less for each difference, with a narrower band."""
    distance = differences(plan, anchor.plan) or 0
    factor = math.exp(anchor.log_ratio * _LESS**distance)
    step = price.step_ns
    sizes = abs(math.log(plan.layout.world_size / anchor.plan.layout.world_size))
    numbers = widths()
    part = min(1.0, numbers["anchored"] + numbers["anchored_difference"] * distance + 0.06 * sizes)
    low, high = (step.expected / step.low) ** part, (step.high / step.expected) ** part
    expected = step.expected * factor
    band = Band(expected, expected / low, expected * high)
    scale = band.expected / step.expected

    def rate(old: Band) -> Band:
        middle = old.expected / scale
        return Band(middle, middle / high, middle * low)

    return replace(
        price,
        step_ns=band,
        tokens_per_s_gpu=rate(price.tokens_per_s_gpu),
        mfu=price.mfu and rate(price.mfu),
        hfu=price.hfu and rate(price.hfu),
        compute_ns=price.compute_ns * scale,
        exposed_ns={cause: value * scale for cause, value in price.exposed_ns.items()},
        bubble_ns=price.bubble_ns * scale,
        optimizer_ns=price.optimizer_ns * scale,
        other_ns=price.other_ns * scale,
        assumptions=(*price.assumptions, f"scaled by measured row {anchor.number}"),
    )
