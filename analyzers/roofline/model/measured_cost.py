"""The cost of a collective if the very same one was measured; and fabrics made of measured times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from shardtoll.analyzers.roofline.machines.curve import Curve, Shape, curve_of, merged
from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.place import Placement
from shardtoll.ledger.measured.measured import Timings

_TWINS = {"send": "recv", "recv": "send"}
"""Both ends of a message take its time."""


class MeasuredCost(NamedTuple):
    """Cost of one collective by measured times, in ns."""

    time_ns: float
    low_ns: float
    high_ns: float


def measured_cost(
    curves: Iterable[Curve], op: str, message_bytes: int, placement: Placement, shape: Shape | None
) -> MeasuredCost | None:
    """Return the cost by the curve of the same op, ranks and hosts; None if there is no such curve.

    `shape` is the model's time by message bytes: beyond the sizes that were measured its form is taken.
    Groups that share a host's network cards are only what was measured sharing them as much.
    """
    if op == "barrier":
        message_bytes = 0
    for curve in curves_of(curves, op, placement):
        time, band = curve.time_ns(message_bytes, shape), curve.band_ns(message_bytes, shape)
        if time is not None and band is not None:
            return MeasuredCost(time, min(band[0], time), max(band[1], time))
    return None


def curves_of(curves: Iterable[Curve], op: str, placement: Placement) -> list[Curve]:
    """Return the curves of this very op and group, its own before those of its other end."""
    placed = [
        curve
        for curve in curves
        if (curve.ranks, curve.nodes) == (placement.ranks, placement.nodes)
        and not (placement.spans_nodes and curve.sharing != placement.sharing)
    ]
    return [curve for name in (op, _TWINS.get(op)) for curve in placed if curve.op == name]


def sizes_note(fabric: Fabric, sizes: Iterable[int]) -> str:
    """Return that a calibrated fabric was measured for groups of other sizes than these; else nothing."""
    measured = timed_ranks(fabric.curves)
    others = {size for size in sizes if size > 1} - measured
    if not measured or not others:
        return ""
    return (
        f"WARNING: floors of groups of {_ranks(others)} are {extrapolated(measured)}; measure groups of that "
        "size before you rely on them"
    )


def measured_ranks(fabric: Fabric, placement: Placement) -> set[int]:
    """Return the sizes of the groups that were timed and cross hosts, or do not, as this one."""
    return timed_ranks(curve for curve in fabric.curves if (curve.nodes > 1) == placement.spans_nodes)


def timed_ranks(curves: Iterable[Curve]) -> set[int]:
    """Return the sizes of groups that were timed.

    Messages do not count: their curves are of two ranks, whatever the size of the group that they were in.
    """
    return {curve.ranks for curve in curves if curve.op not in _TWINS}


def extrapolated(ranks: Iterable[int]) -> str:
    """Return in words what a price of groups rests on if only groups of other sizes were timed; of none, only
    messages were."""
    sizes = set(ranks)
    return f"extrapolated from measured groups of {_ranks(sizes)}" if sizes else "extrapolated from messages"


def _ranks(sizes: Iterable[int]) -> str:
    *most, last = sorted(sizes)
    return f"{', '.join(map(str, most))} and {last} ranks" if most else f"{last} ranks"


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
    curves = merged([*base.curves, *(curve_of(each) for each in timings)])
    return replace(base, curves=curves, measured=True, provenance=provenance)
