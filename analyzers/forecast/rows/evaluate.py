"""Prices a table of rows, each by itself, and scores the prices of those that were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.analyzers.forecast.memory.peak import plan_memory
from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.rows.calibrate import Anchor, anchor_for, calibrated
from shardtoll.analyzers.forecast.rows.full_memory import may_be_full, with_full_memory
from shardtoll.analyzers.forecast.rows.measured import measured_memory_gib, measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, ReadRow, number, read_row
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.forecast import Band, PlanPrice, PricedRow
from shardtoll.ledger.answers.plan_memory import PlanMemory

Row = Mapping[str, str]

GIB = 2.0**30


def priced_rows(rows: Sequence[Row], anchors: Sequence[Anchor] = ()) -> Iterator[PricedRow]:
    """Yield the price of each row, or the reason why it has none. `anchors`: measured rows to scale by."""
    for place, row in enumerate(rows, start=1):
        yield priced_row(place, row, anchors)


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
    if memory is not None and may_be_full(read.plan, memory):
        price = with_full_memory(price)
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
