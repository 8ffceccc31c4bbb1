"""Weak and strong scaling of a measured run: collectives at other sizes of their groups, compute on another
GPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import Card, card_of_run
from shardtoll.analyzers.forecast.plan.constants import widths
from shardtoll.analyzers.forecast.plan.other_gpu import compute_factors
from shardtoll.analyzers.forecast.rescale.recorded_step import Recorded, recorded_step
from shardtoll.analyzers.forecast.rescale.sent_price import Machine, scales_with_world, times_ns
from shardtoll.ledger import Report, Run, UsageError
from shardtoll.ledger.answers.forecast import Band, Scaling, ScalingPoint
from shardtoll.ledger.words import human

_COMPUTE_BAND: Final = 1.04
"""Factor of the band of compute that does not change: runs of one layout differ by so much between days."""
_OFF: Final = 0.01
"""From this share on a note says that the recorded step is not the mean step."""
_NAMELESS: Final = ("cuda", "gpu", "xpu")
"""Devices that are some accelerator, and do not say which."""
_LEAST: Final = 0.01
"""Least share of the expected step at which a band begins: a rate needs a time."""


def scale_run(
    report: Report,
    name: str,
    before: Machine,
    after: Machine,
    world: int,
    anchor: Report | None = None,
    own: Band | None = None,
) -> Scaling:
    """Return the run re-priced for `world` ranks and for numbers between, on another machine or the same.

    `anchor`: a run of the same job on another number of ranks, which corrects the forecast. `own`: of a dry
    run, its own forecast: an unchanged run has that step and band. Raises UsageError where the world does
    not divide by the groups that stay, or the run has no finished step.
    """
    recorded = _as_forecast(recorded_step(report), own)
    measured = report.run.world_size
    fixed = _fixed_ranks(recorded, measured)
    if world % fixed:
        raise UsageError(
            f"--world {world} does not divide by the {fixed} ranks of groups that keep their size",
            f"give a multiple of {fixed}",
        )
    strides = _strides(report)
    notes = _scaled_note(recorded)
    correction = _correction(report, anchor, before, strides, notes)
    points = {
        kind: _with_efficiency(
            [
                _point(recorded, measured, each, before, after, strides, kind, correction, notes, own)
                for each in _worlds(measured, world, fixed)
            ],
            kind,
        )
        for kind in ("weak", "strong")
    }
    return Scaling(
        name, measured, recorded.duration_ns, _name(before.gpu), _name(after.gpu), before.fabric.name,
        after.fabric.name, world, points["weak"], points["strong"],
        None if anchor is None else human.plural(anchor.run.world_size, "rank"),
        tuple(dict.fromkeys(notes)), base_world=_base(points["weak"]).world,
        strong_base_world=_base(points["strong"]).world,
        dry=report.run.source == "dry",
    )  # fmt: skip


def _as_forecast(recorded: Recorded, own: Band | None) -> Recorded:
    """Return the step with the forecast's own time, which the record has in whole nanoseconds."""
    if own is None:
        return recorded
    scale = recorded.scale * own.expected / recorded.duration_ns
    return replace(recorded, duration_ns=own.expected, scale=scale)


def _scaled_note(recorded: Recorded) -> list[str]:
    if abs(recorded.scale - 1) < _OFF:
        return []
    return [
        f"step {recorded.step} of rank {recorded.rank} stands for all steps: its times are scaled by "
        f"{recorded.scale:.3g} to the mean step"
    ]


def _fixed_ranks(recorded: Recorded, measured: int) -> int:
    """Return how many ranks share one replica: the product of the sizes of groups that keep them."""
    sizes = {sent.name: sent.group_size for sent in recorded.sent if not scales_with_world(sent, measured)}
    product = math.prod(sizes.values())
    return product if product and measured % product == 0 else 1


def _worlds(measured: int, world: int, fixed: int) -> list[int]:
    low, high = min(measured, world), max(measured, world)
    sizes = {measured, world}
    size = low
    while size < high:
        if size % fixed == 0:
            sizes.add(size)
        size *= 2
    return sorted(sizes)


def _strides(report: Report) -> dict[str, int]:
    return {
        group.name: max(1, group.ranks[1] - group.ranks[0]) for group in report.groups if len(group.ranks) > 1
    }


def _correction(
    report: Report, anchor: Report | None, machine: Machine, strides: dict[str, int], notes: list[str]
) -> tuple[float, float]:
    """Return the logarithm of measured over forecast at the anchor, and the logarithm of how far away it
    is."""
    if anchor is None:
        return 0.0, 1.0
    _refuse_another_machine(report, anchor, notes)
    recorded = recorded_step(report)
    measured, there = report.run.world_size, anchor.run.world_size
    point = _point(recorded, measured, there, machine, machine, strides, "weak", (0.0, 1.0), notes)
    ratio = math.log(recorded_step(anchor).duration_ns / point.step_ns.expected)
    return ratio, math.log(there / measured)


def _refuse_another_machine(report: Report, anchor: Report, notes: list[str]) -> None:
    """Raise UsageError for a run that says nothing of this one's steps: a forecast, or of another GPU.

    A GPU that a record does not name may be the same: a note says so.
    """
    if anchor.run.source == "dry" and report.run.source != "dry":
        raise UsageError(
            "the run that corrects is a dry run, and a forecast corrects no measured step",
            "give --calibrate a measured run of the same job",
        )
    gpus = [_named(each.run) for each in (report, anchor)]
    on_cpu_and_not = "cpu" in gpus and any(each.run.device in _NAMELESS for each in (report, anchor))
    if on_cpu_and_not or (None not in gpus and gpus[0] != gpus[1]):
        names = [name or "a GPU" for name in gpus]
        raise UsageError(
            f"the run is on {names[0]}, and the one that corrects on {names[1]}",
            "give --calibrate a run of the same job on the same kind of GPU",
        )
    if None in gpus:
        known = gpus[0] or gpus[1]
        whose = "the runs were" if known is None else f"the run{' that corrects' if gpus[0] else ''} was"
        taken = "both are taken to be the same" if known is None else f"it is taken to be {known}"
        notes.append(f"which GPU {whose} on is unknown: {taken}")


def _named(run: Run) -> str | None:
    """Return the GPU that a run was on, or `cpu`; None if its record names none."""
    card = card_of_run(run)
    if card is not None:
        return card.name
    return None if run.device in _NAMELESS else run.device or None


def _point(
    recorded: Recorded,
    measured: int,
    world: int,
    before: Machine,
    after: Machine,
    strides: dict[str, int],
    kind: str,
    correction: tuple[float, float],
    notes: list[str],
    own: Band | None = None,
) -> ScalingPoint:
    work = measured / world if kind == "strong" else 1.0
    factors = compute_factors(before.gpu, after.gpu)
    unpriced: list[str] = []
    sent = [
        times_ns(
            each,
            measured,
            world,
            work,
            before,
            after,
            strides,
            notes,
            forecast=own is not None,
            unpriced=unpriced,
        )
        for each in recorded.sent
    ]
    ratio = _corrected(correction, measured, world)
    steps = []
    for place, factor in enumerate(factors):
        times = [each[place] for each in sent]
        steps.append(recorded.step_ns(factor * work, times) * ratio)
    low, expected, high = steps
    exposed = _exposed(recorded, [each[1] for each in sent], factors[1] * work)
    less, more = _half_width(recorded, own, sum(exposed.values()) / expected if expected else 0.0)
    low, high = max(low * math.exp(-less), expected * _LEAST), high * math.exp(more)
    expected = min(max(expected, low), high)
    step = Band(expected, low, high)
    compute = recorded.compute_ns * factors[1] * work
    compute = min(compute, expected)
    rest = max(0.0, expected - compute - sum(exposed.values()))
    names = tuple(dict.fromkeys(unpriced))
    return ScalingPoint(world, step, compute, exposed, rest, Band(1.0, 1.0, 1.0), names)


def _base(points: Sequence[ScalingPoint]) -> ScalingPoint:
    """Return the point whose efficiency is 1: that of the fewest ranks with a price, else of the fewest."""
    return next((point for point in points if not point.unpriced), points[0])


def _with_efficiency(points: Sequence[ScalingPoint], kind: str) -> tuple[ScalingPoint, ...]:
    """Return points, by ranks, with their work per GPU and second over that of `_base`.

    The run itself is no base for another machine: a faster one would have an efficiency above 1. Both steps
    may be off, each by its own band; the base is 1 whatever its step takes.
    """
    base, strong = _base(points), kind == "strong"
    return tuple(
        point
        if point is base
        else replace(
            point,
            efficiency=_over(base.step_ns, point.step_ns, base.world / point.world if strong else 1.0),
        )
        for point in points
    )


def _over(one: Band, other: Band, factor: float) -> Band:
    """Return how often `other` goes into `one`, times a factor."""
    return Band(
        factor * one.expected / other.expected, factor * one.low / other.high, factor * one.high / other.low
    )


def _half_width(recorded: Recorded, own: Band | None, exposed_share: float) -> tuple[float, float]:
    """Return the logarithms of how far a step may be faster and slower, prices of collectives apart.

    A dry run's own band holds for its own share of exposed communication. A larger share makes it wider, as
    in the dry run.
    """
    if own is None:
        return math.log(_COMPUTE_BAND), math.log(_COMPUTE_BAND)
    times = [float(each.duration_ns) for each in recorded.sent]
    before = sum(_exposed(recorded, times, 1.0).values()) / own.expected
    numbers = widths()
    wider = (numbers["net"] + numbers["exposed"]) * max(0.0, exposed_share - before)
    return math.log(own.expected / own.low) + wider, math.log(own.high / own.expected) + wider


def _name(card: Card | None) -> str | None:
    return None if card is None else card.name


def _corrected(correction: tuple[float, float], measured: int, world: int) -> float:
    ratio, distance = correction
    if not ratio:
        return 1.0
    if not distance:
        return math.exp(ratio)
    part = math.log(world / measured) / distance
    return math.exp(ratio * min(1.5, max(0.0, part)))


def _exposed(recorded: Recorded, times: Sequence[float], factor: float) -> dict[str, float]:
    """Return what the step would gain if each kind of collective took no time, scaled to add up to their
    sum."""
    whole = recorded.step_ns(factor, times)
    bare = recorded.step_ns(factor, [0.0] * len(times))
    parts: dict[str, float] = defaultdict(float)
    for sent, time in zip(recorded.sent, times, strict=True):
        hidden = max(0.0, sent.duration_ns - sent.exposed_ns)
        parts[sent.name] += max(0.0, time - hidden)
    total = sum(parts.values())
    return {name: value * (whole - bare) / total for name, value in parts.items()} if total else {}
