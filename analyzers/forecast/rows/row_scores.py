"""Scores of priced rows by group, compared with the trivial baselines."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from shardtoll.analyzers.forecast.plan.price import price_plan
from shardtoll.analyzers.forecast.rows.calibrate import Anchor, calibrated
from shardtoll.analyzers.forecast.rows.measured_step import measured_step_ns
from shardtoll.analyzers.forecast.rows.parse import Abstain, ReadRow, read_row
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.answers.forecast import PricedRow, Scores, WeakScaling


def scores_of(rows: Sequence[PricedRow]) -> tuple[Scores, ...]:
    """Return the scores of each group in the order in which they come, then of all."""
    groups: dict[str, list[PricedRow]] = defaultdict(list)
    for row in rows:
        groups[row.group or "rows"].append(row)
    several = [*groups.items(), ("all", list(rows))] if len(groups) > 1 else list(groups.items())
    return tuple(_scores(name, members) for name, members in several)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which that share of the values lies, interpolated; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _scores(name: str, rows: Sequence[PricedRow]) -> Scores:
    signed = [row.error for row in rows if row.error is not None]
    sizes = [abs(error) for error in signed]
    within = [row.within for row in rows if row.within is not None]
    widths = [row.step_s.high / row.step_s.low - 1 for row in rows if row.step_s is not None]
    memory = [
        abs(row.memory_gib.expected / row.measured_memory_gib - 1)
        for row in rows
        if row.memory_gib is not None and row.measured_memory_gib
    ]
    return Scores(
        name,
        len(rows),
        sum(row.reason is None for row in rows),
        len(signed),
        quantile(signed, 0.5),
        statistics.fmean(sizes) if sizes else None,
        quantile(sizes, 0.5),
        quantile(sizes, 0.9),
        max(sizes, default=None),
        sum(within) / len(within) if within else None,
        quantile(widths, 0.5),
        _constant_rate(rows),
        quantile(memory, 0.5),
    )


def _constant_rate(rows: Sequence[PricedRow]) -> float | None:
    """Return the mean error if every row ran at one share of the peak: the median of the measured ones."""
    shares = [
        row.mfu.expected * row.step_s.expected / row.measured_step_s
        for row in rows
        if row.mfu is not None and row.step_s is not None and row.measured_step_s
    ]
    middle = quantile(shares, 0.5)
    if middle is None or middle <= 0:
        return None
    return statistics.fmean(abs(share / middle - 1) for share in shares)


def weak_scaling(rows: Sequence[Mapping[str, str]]) -> WeakScaling:
    """Return how well the last point of each series follows from its first, which calibrates the forecast."""
    series: dict[tuple[object, ...], list[tuple[ReadRow, float]]] = defaultdict(list)
    for row in rows:
        try:
            read = read_row(row)
        except Abstain:
            continue
        measured = measured_step_ns(row, read.plan)
        if measured is not None:
            series[_alike(row, read)].append((read, measured))
    errors, unchanged = [], []
    for points in series.values():
        points.sort(key=lambda point: point[0].plan.layout.world_size)
        (first, began), (last, ended) = points[0], points[-1]
        if first.plan.layout.world_size == last.plan.layout.world_size:
            continue
        try:
            anchor = Anchor(
                0, first.plan, math.log(began / price_plan(first.plan, first.network).step_ns.expected)
            )
            price = calibrated(last.plan, price_plan(last.plan, last.network), anchor)
        except ShardtollError:
            continue
        errors.append(abs(price.step_ns.expected / ended - 1))
        unchanged.append(abs(began / ended - 1))
    return WeakScaling(
        len(errors),
        quantile(errors, 0.5),
        quantile(errors, 0.9),
        quantile(unchanged, 0.5),
        quantile(unchanged, 0.9),
    )


def _alike(row: Mapping[str, str], read: ReadRow) -> tuple[object, ...]:
    plan, layout = read.plan, read.plan.layout
    return (
        row.get("source"), row.get("group"), row.get("framework"), plan.model, plan.gpu, plan.precision,
        plan.compiled, plan.sequence, layout.sharding, layout.tp, layout.pp, layout.chunks, layout.cp,
        layout.ep, layout.micro_batch, layout.accumulation, layout.checkpointing, layout.async_tp,
    )  # fmt: skip
