"""Prices a table of rows, each by itself, and scores the prices of those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.analyzers.forecast.memory.memory_fits import fit_of
from shardtoll.analyzers.forecast.memory.peak import plan_memory
from shardtoll.analyzers.forecast.memory.recipes import recipe_of
from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.rows.calibrate import Anchor, anchor_for, calibrated
from shardtoll.analyzers.forecast.rows.measured_step import measured_memory_gib, measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, ReadRow, number, read_row
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.forecast import Band, PlanPrice, PricedRow
from shardtoll.ledger.answers.plan_memory import PlanMemory
from shardtoll.ledger.answers.training_plan import TrainingPlan

Row = Mapping[str, str]

GIB = 2.0**30

LONGEST: Final = 8.5
"""How many times as long as expected such a step may take. Four runs of hf-ultrascale whose expected peak
exceeds the GPU took 2.6, 2.6, 4.5 and 8.3 times as long. Four runs are too few to expect any of these."""

_FITTED_ROWS: Final = 50
"""A framework's memory is known well enough to say so from this many measured rows on."""


def priced_row(place: int, row: Row, anchors: Sequence[Anchor] = ()) -> PricedRow:
    """Return one row's price."""
    try:
        read = read_row(row)
        price = price_plan(read.plan, read.network)
    except (Abstain, ShardtollError) as error:
        return _named(place, row, getattr(error, "message", None) or str(error))
    anchor = anchor_for(read.plan, anchors)
    if anchor is not None:
        price = calibrated(read.plan, price, anchor)
    memory = _memory(read)
    if memory is not None and _may_be_full(read.plan, memory):
        price = _with_full_memory(price)
    return _filled(_named(place, row, None), row, read, price, anchor, memory)


def _named(place: int, row: Row, reason: str | None) -> PricedRow:
    return PricedRow(
        place,
        row.get("group") or "",
        row.get("model") or "",
        row.get("gpu") or row.get("hardware") or "",
        number(row, "gpus"),
        row.get("metric") or "",
        reason,
    )


def _filled(
    named: PricedRow,
    row: Row,
    read: ReadRow,
    price: PlanPrice,
    anchor: Anchor | None,
    memory: PlanMemory | None,
) -> PricedRow:
    step = price.step_ns.scaled(1e-9)
    waits = sum(price.exposed_ns.values()) + price.bubble_ns
    measured = measured_step_ns(row, read.plan)
    return PricedRow(
        named.number, named.group, named.model, named.gpu, named.gpus, named.metric, None,
        step, price.tokens_per_s_gpu, price.mfu, min(1.0, waits / price.step_ns.expected),
        _gib(memory), None if memory is None else memory.fits(), read.assumed,
        anchor.number if anchor else None,
        None if measured is None else measured / 1e9, measured_memory_gib(row),
        read.replaced,
    )  # fmt: skip


def _memory(read: ReadRow) -> PlanMemory | None:
    try:
        return plan_memory(read.plan, capacity_of(read.plan.gpu))
    except ShardtollError:
        return None


def _gib(memory: PlanMemory | None) -> Band | None:
    if memory is None:
        return None
    reserved = memory.reserved
    return Band(*(each / GIB for each in (reserved.expected_bytes, reserved.low_bytes, reserved.high_bytes)))


def _may_be_full(plan: TrainingPlan, memory: PlanMemory) -> bool:
    """Whether the expected peak exceeds what the driver reports of the GPU, if rows measured that peak."""
    if fit_of(recipe_of(plan).name).rows < _FITTED_ROWS:
        return False
    return memory.reserved.expected_bytes + memory.outside_bytes > capacity_of(plan.gpu)


def _with_full_memory(price: PlanPrice) -> PlanPrice:
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
