"""What the model says of a measured sweep, beside the measurement: not fitted, calibrated or transferred.

A size that is scored never takes part in what its prediction is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from shardtoll.analyzers.roofline.cost import Cost, collective_cost
from shardtoll.analyzers.roofline.curve import Curve, CurvePoint
from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.library import load_library
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.analyzers.roofline.score import Scored
from shardtoll.analyzers.roofline.sweep import Sweep, SweepPoint

Mode = Literal["model", "calibrated", "transferred"]
"""model: nothing fitted. calibrated: fitted on every second size of the same sweep, the others scored.
transferred: fitted on other sweeps."""

Predict: TypeAlias = Callable[[Fabric, str, int, Placement], Cost | None]
"""What says the cost of an op with some message bytes at a placement; None where it refuses."""

_REFUSED: Final = "the model does not predict this collective here"


@dataclass(frozen=True, slots=True)
class Judged:
    """One size of a sweep and what was said of it."""

    message_bytes: int
    measured_ns: float
    cost: Cost | None
    """None where the model refuses."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One sweep, predicted."""

    sweep: Sweep
    fabric: str | None
    """Its name; None where no fabric is known for the sweep's hardware."""
    mode: Mode
    points: tuple[Judged, ...]
    """The sizes that are scored, ascending."""
    fitted_bytes: tuple[int, ...] = ()
    """Sizes of this sweep that were fitted instead."""
    reason: str | None = None
    """Why some or all sizes have no prediction; None where all have one."""

    @property
    def scored(self) -> tuple[Scored, ...]:
        """The sizes that have a prediction, for `score`."""
        return tuple(
            Scored(
                point.message_bytes,
                point.measured_ns,
                point.cost.time_ns,
                point.cost.low_ns,
                point.cost.high_ns,
            )
            for point in self.points
            if point.cost is not None
        )


def untold(sweep: Sweep, fabric: Fabric, sure: str) -> str | None:
    """Return why nothing is said of a sweep that is not fitted: its hardware does not tell the network.

    `sure`: how sure `fabric_of_hardware` is. None where the network is told, or none is used.
    """
    if not sure.startswith("assumed") or not sweep.placement_on(fabric).spans_nodes:
        return None
    return f"its hardware does not tell the network between nodes; name one with --fabric, as {fabric.name}"


def refused(sweep: Sweep, mode: Mode, reason: str, fabric: str | None = None) -> Evaluation:
    """Return the evaluation of a sweep of which nothing is said, with the reason."""
    points = tuple(Judged(point.message_bytes, point.time_ns, None) for point in sweep.points)
    return Evaluation(sweep, fabric, mode, points, (), reason)


def not_fitted(sweep: Sweep, fabric: Fabric, predict: Predict = collective_cost) -> Evaluation:
    """Return what the fabric's own figures say of the sweep."""
    return _evaluate(sweep, fabric, "model", sweep.points, (), predict)


def calibrated(sweep: Sweep, fabric: Fabric, predict: Predict = collective_cost) -> Evaluation:
    """Return what is said of every second size once the others are measured: 1st, 3rd, 5th, ... by bytes.

    A size that comes several times is fitted with all of its times or scored with all of them.
    """
    fitted = sweep.sizes[::2]
    scored = tuple(point for point in sweep.points if point.message_bytes not in fitted)
    kept = tuple(point for point in sweep.points if point.message_bytes in fitted)
    curves = _curves([replace(sweep, points=kept)], fabric)
    return _evaluate(sweep, replace(fabric, curves=curves), "calibrated", scored, fitted, predict)


def transferred(
    sweep: Sweep, fabric: Fabric, on: Sequence[Sweep], predict: Predict = collective_cost
) -> Evaluation:
    """Return what is said of the sweep once other sweeps of the same fabric are measured."""
    curves = _curves(on, fabric)
    return _evaluate(sweep, replace(fabric, curves=curves), "transferred", sweep.points, (), predict)


def curve_of(sweep: Sweep, fabric: Fabric) -> Curve:
    """Return the sweep as measured points; a size measured several times has their median and range."""
    times: dict[int, list[float]] = {}
    for point in sweep.points:
        # A curve is kept over the logarithm of the size.
        if point.message_bytes > 0:
            times.setdefault(point.message_bytes, []).append(point.time_ns)
    points = tuple(_curve_point(size, sorted(found)) for size, found in sorted(times.items()))
    nodes = sweep.placement_on(fabric).nodes
    return Curve(sweep.op, sweep.ranks, nodes, points, sweep.source or sweep.hardware)


def _curves(sweeps: Sequence[Sweep], fabric: Fabric) -> tuple[Curve, ...]:
    curves = (curve_of(sweep, fabric) for sweep in sweeps)
    return tuple(curve for curve in curves if curve.points)


def _curve_point(size: int, times: list[float]) -> CurvePoint:
    middle = len(times) // 2
    typical = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    return CurvePoint(size, round(typical), round(times[0]), round(times[-1]), len(times))


def _evaluate(
    sweep: Sweep,
    fabric: Fabric,
    mode: Mode,
    scored: Sequence[SweepPoint],
    fitted: tuple[int, ...],
    predict: Predict,
) -> Evaluation:
    at = sweep.placement_on(fabric)
    least_ns = sweep.least_ns(load_library(fabric.library))
    points = tuple(
        Judged(
            point.message_bytes,
            point.time_ns,
            _at_least(predict(fabric, sweep.op, point.message_bytes, at), least_ns),
        )
        for point in scored
    )
    reason = None
    if not points:
        reason = "one size only: there is none left to score"
    elif any(point.cost is None for point in points):
        reason = _why_refused(fabric, sweep)
    return Evaluation(sweep, fabric.name, mode, points, fitted, reason)


def _at_least(cost: Cost | None, least_ns: float) -> Cost | None:
    """Return the cost where each call takes at least what the measuring tool itself needs."""
    if cost is None or cost.time_ns >= least_ns or cost.basis == "measured":
        return cost
    least = math.ceil(least_ns)
    factor = cost.high_ns / cost.time_ns
    return replace(cost, time_ns=least, low_ns=math.floor(least / factor), high_ns=math.ceil(least * factor))


def _why_refused(fabric: Fabric, sweep: Sweep) -> str:
    if sweep.placement_on(fabric).spans_nodes and fabric.inter is None:
        return f"fabric {fabric.name} has no network between nodes"
    if fabric.intra is None:
        return f"fabric {fabric.name} has no link between ranks of a node"
    return _REFUSED
