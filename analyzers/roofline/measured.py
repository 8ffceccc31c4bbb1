"""What a collective costs where the very same one was measured; and fabrics made of measured times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from shardtoll.analyzers.roofline.curve import Curve, Shape, curve_of, merged
from shardtoll.analyzers.roofline.fabric import Fabric
from shardtoll.analyzers.roofline.place import Placement
from shardtoll.ledger.measured import Timings

_TWINS = {"send": "recv", "recv": "send"}
"""Both ends of a message take its time."""


class MeasuredCost(NamedTuple):
    """What measured times say of one collective, in ns."""

    time_ns: float
    low_ns: float
    high_ns: float
    floor_ns: float
    """A low quantile of what was reached."""


def measured_cost(
    curves: Iterable[Curve], op: str, message_bytes: int, at: Placement, shape: Shape | None
) -> MeasuredCost | None:
    """Return the cost by the curve of the same op, ranks and hosts; None where there is no such curve.

    `shape` is the model's time by message bytes: beyond the sizes that were measured its form is taken.
    Groups that share a host's network cards are only what was measured sharing them as much.
    """
    if op == "barrier":
        message_bytes = 0
    for curve in curves_of(curves, op, at):
        time, band = curve.time_ns(message_bytes, shape), curve.band_ns(message_bytes, shape)
        low = curve.low_ns(message_bytes, shape)
        if time is not None and band is not None and low is not None:
            return MeasuredCost(time, min(band[0], time), max(band[1], time), min(low, time))
    return None


def curves_of(curves: Iterable[Curve], op: str, at: Placement) -> list[Curve]:
    """Return the curves of this very op and group, its own before those of its other end."""
    placed = [
        curve
        for curve in curves
        if (curve.ranks, curve.nodes) == (at.ranks, at.nodes)
        and not (at.spans_nodes and curve.sharing != at.sharing)
    ]
    return [curve for name in (op, _TWINS.get(op)) for curve in placed if curve.op == name]


def with_links(fabric: Fabric, fitting: Fabric) -> Fabric:
    """Return a fabric of measured times alone with the links of `fitting`, for all that was not measured.

    A calibration of a job's own ranks knows its devices and none of its links.
    """
    if fabric.intra is not None or not fabric.curves or fitting.intra is None:
        return fabric
    return replace(
        fitting,
        name=fabric.name,
        title=fabric.title,
        provenance=f"{fabric.provenance}; links, for what was not measured, of {fitting.name}",
        curves=fabric.curves,
        measured=fabric.measured,
        library=fabric.library,
        ranks_per_node=fabric.ranks_per_node or fitting.ranks_per_node,
    )


def calibrated(base: Fabric, timings: Iterable[Timings], provenance: str) -> Fabric:
    """Return `base` with the curves of these timings, and of what it had measured of other collectives.

    `provenance` says when, where and how often was measured.
    """
    curves = merged([*base.curves, *(curve_of(one) for one in timings)])
    return replace(base, curves=curves, measured=True, provenance=provenance)
