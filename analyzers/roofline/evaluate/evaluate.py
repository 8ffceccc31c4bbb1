"""Compares the model's predictions with a measured sweep: not fitted, calibrated or transferred.

A size that is scored never takes part in what its prediction is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from shardtoll.analyzers.roofline.evaluate.score import Scored
from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, SweepPoint
from shardtoll.analyzers.roofline.machines.curve import Curve, curve_of, merged
from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN, Fabric
from shardtoll.analyzers.roofline.machines.hardware import fabric_of_hardware
from shardtoll.analyzers.roofline.model.band import band_of_model
from shardtoll.analyzers.roofline.model.cost import Cost, collective_cost
from shardtoll.analyzers.roofline.model.library import Library, load_library
from shardtoll.analyzers.roofline.model.model import machine_of
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.ledger.measured.measured import Timings

Mode = Literal["model", "calibrated", "transferred"]
"""model: nothing fitted. calibrated: fitted on every second size of the same sweep, the others scored.
transferred: fitted on other sweeps."""

Predict: TypeAlias = Callable[[Fabric, str, int, Placement], Cost | None]
"""Returns the cost of an op with some message bytes at a placement; None if it refuses."""

AS_ONE: Final = 1.01
"""Sizes that differ by this factor at most are one: counts of elements are rounded to the ranks."""

_REFUSED: Final = "the model does not predict this collective here; name a fabric that measured it"


@dataclass(frozen=True, slots=True)
class Judged:
    """One size of a sweep and what was said of it."""

    message_bytes: int
    measured_ns: float
    cost: Cost | None
    """None if the model refuses."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One sweep, predicted."""

    sweep: Sweep
    fabric: str | None
    """Its name; None if no fabric is known for the sweep's hardware."""
    mode: Mode
    points: tuple[Judged, ...]
    """The sizes that are scored, ascending."""
    fitted_bytes: tuple[int, ...] = ()
    """Sizes of this sweep that were fitted instead."""
    reason: str | None = None
    """Why some or all sizes have no prediction; None if all have one."""
    alone: str | None = None
    """Why the model alone was asked although other sweeps were given; None if they took part."""

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
                point.cost.floor_ns,
                point.cost.light_ns,
            )
            for point in self.points
            if point.cost is not None
        )


def told(sweep: Sweep, fabric: Fabric, sure: str) -> bool:
    """Whether the sweep's hardware tells the network it used; else that of `fabric` is a guess.

    `sure`: how sure `fabric_of_hardware` is.
    """
    return not sure.startswith("assumed") or not sweep.placement_on(fabric).spans_nodes


def refused(sweep: Sweep, mode: Mode, reason: str, fabric: str | None = None) -> Evaluation:
    """Return the evaluation of a sweep without predictions, with the reason."""
    points = tuple(Judged(point.message_bytes, point.time_ns, None) for point in sweep.points)
    return Evaluation(sweep, fabric, mode, points, (), reason)


def not_fitted(
    sweep: Sweep, fabric: Fabric, predict: Predict = collective_cost, library: Library | None = None
) -> Evaluation:
    """Return what the fabric's own figures say of the sweep; `library`: whose constants `predict` uses."""
    return _evaluate(sweep, fabric, "model", sweep.points, (), predict, library)


def calibrated(
    sweep: Sweep, fabric: Fabric, predict: Predict = collective_cost, library: Library | None = None
) -> Evaluation:
    """Return what is said of every second size once the others are measured: 1st, 3rd, 5th, ... by bytes.

    A size that comes several times is fitted with all of its times, or scored with all of them. So are
    neighbouring sizes that differ by a hundredth or less, as one would give the other away.
    """
    fitted = tuple(size for group in _as_one(sweep.sizes)[::2] for size in group)
    scored = tuple(point for point in sweep.points if point.message_bytes not in fitted)
    kept = tuple(point for point in sweep.points if point.message_bytes in fitted)
    curves = _measured_curves([replace(sweep, points=kept)], fabric)
    return _evaluate(sweep, replace(fabric, curves=curves), "calibrated", scored, fitted, predict, library)


def _as_one(sizes: Sequence[int]) -> list[list[int]]:
    """Return ascending sizes in groups of those that are as good as equal to the one before."""
    groups: list[list[int]] = []
    for size in sizes:
        if groups and size <= AS_ONE * groups[-1][-1]:
            groups[-1].append(size)
        else:
            groups.append([size])
    return groups


def transferred(
    sweep: Sweep,
    fabric: Fabric,
    on: Sequence[Sweep],
    predict: Predict = collective_cost,
    library: Library | None = None,
) -> Evaluation:
    """Return what is said of the sweep once other sweeps of the same fabric are measured.

    They are of other runs, often of another cluster. So a curve of this very op and placement does not count
    as its measurement. Its band is at least as wide as that of a transfer.
    """
    measured = replace(fabric, curves=_measured_curves(on, fabric))
    constants = library or load_library(fabric.library, fabric.library_version)

    def of_others(fabric: Fabric, op: str, message_bytes: int, placement: Placement) -> Cost | None:
        cost = predict(fabric, op, message_bytes, placement)
        return None if cost is None else _of_another_run(cost, fabric, message_bytes, placement, constants)

    evaluation = _evaluate(sweep, measured, "transferred", sweep.points, (), of_others, library)
    bases = {point.cost.basis for point in evaluation.points if point.cost is not None}
    return replace(evaluation, alone=_alone(sweep.placement_on(fabric))) if bases == {"model"} else evaluation


def _of_another_run(
    cost: Cost, fabric: Fabric, message_bytes: int, placement: Placement, library: Library
) -> Cost:
    """Return the cost with the wider of the curve's band and that of a transfer."""
    if cost.basis != "measured":
        return cost
    machine = machine_of(fabric, placement, library)
    ends = band_of_model(library, machine, "transferred", np.array([message_bytes], dtype=np.float64))
    low, high = (float(end[0]) for end in ends)
    low_ns = min(cost.low_ns, math.floor(cost.time_ns * math.exp(-low)))
    return replace(
        cost,
        basis="transferred",
        low_ns=max(low_ns, cost.light_ns),
        floor_ns=max(min(cost.floor_ns, low_ns), cost.light_ns),
        high_ns=max(cost.high_ns, math.ceil(cost.time_ns * math.exp(high))),
    )


def _alone(placement: Placement) -> str:
    if placement.spans_nodes:
        what = "nothing of a sweep inside one node carries over to the network"
    else:
        what = "nothing of a sweep over the network carries over to the links inside a node"
    return f"{what}: predicted by the model alone"


def fabric_of(sweep: Sweep) -> tuple[Fabric | None, str]:
    """Return the fabric that the sweep's hardware names and how sure that is; None if it names none."""
    fabric, sure = fabric_of_hardware(sweep.hardware, sweep.nodes, sweep.ranks)
    return (None if fabric.name == UNKNOWN.name else fabric), sure


def timings_of(sweep: Sweep, fabric: Fabric) -> Timings | None:
    """Return the sweep's times as a calibration keeps them; None between fewer than two ranks."""
    times: dict[int, list[int]] = {}
    for point in sweep.points:
        times.setdefault(point.message_bytes, []).append(max(1, round(point.time_ns)))
    if not times or sweep.ranks < 2:
        return None
    source = sweep.source or sweep.hardware or "a measured sweep"
    return Timings(sweep.op, sweep.ranks, sweep.placement_on(fabric).nodes, times, source)


def _measured_curves(sweeps: Sequence[Sweep], fabric: Fabric) -> tuple[Curve, ...]:
    measured = (timings_of(sweep, fabric) for sweep in sweeps)
    return merged(curve_of(timings) for timings in measured if timings is not None)


def _evaluate(
    sweep: Sweep,
    fabric: Fabric,
    mode: Mode,
    scored: Sequence[SweepPoint],
    fitted: tuple[int, ...],
    predict: Predict,
    library: Library | None,
) -> Evaluation:
    placement = sweep.placement_on(fabric)
    least_ns = sweep.least_ns(library or load_library(fabric.library, fabric.library_version))
    points = tuple(
        Judged(
            point.message_bytes,
            point.time_ns,
            _at_least(predict(fabric, sweep.op, point.message_bytes, placement), least_ns),
        )
        for point in scored
    )
    reason = None
    if not points:
        reason = "one size only: there is none left to score; give a sweep of two sizes or more"
    elif any(point.cost is None for point in points):
        reason = _why_refused(fabric, sweep)
    return Evaluation(sweep, fabric.name, mode, points, fitted, reason)


def _at_least(cost: Cost | None, least_ns: float) -> Cost | None:
    """Return the cost if each call takes at least what the measuring tool itself needs."""
    if cost is None or cost.time_ns >= least_ns or cost.basis == "measured":
        return cost
    least = math.ceil(least_ns)
    factor = cost.high_ns / cost.time_ns
    low_ns = max(math.floor(least / factor), cost.light_ns)
    return replace(cost, time_ns=least, low_ns=low_ns, floor_ns=low_ns, high_ns=math.ceil(least * factor))


def _why_refused(fabric: Fabric, sweep: Sweep) -> str:
    if sweep.placement_on(fabric).spans_nodes and fabric.inter is None:
        return f"fabric {fabric.name} has no network between nodes; name one with --fabric that has"
    if fabric.intra is None:
        return f"fabric {fabric.name} has no link between ranks of a node; name one with --fabric that has"
    return _REFUSED
