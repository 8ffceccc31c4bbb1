"""Whether two sweeps, or a sweep and a fabric, are one measurement: what was fitted is not scored."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.roofline.evaluate.sweep import Sweep
from shardtoll.analyzers.roofline.machines.fabric import Fabric

ROUNDED_NS: Final = 50.0
ROUNDED_SHARE: Final = 5e-4
"""By how much a time and its copy differ if one is rounded to 0.1 us or to four digits."""


def same(sweep: Sweep, other: Sweep) -> bool:
    """Whether both are one measurement: a copy of the file, or a part of its rows, is the same sweep.

    A copy may be rounded, or have no in-place column. Two runs may agree in a few times by chance, not in
    half of them.
    """
    if (sweep.op, sweep.ranks, sweep.nodes) != (other.op, other.ranks, other.nodes):
        return False
    fewer, more = sorted((sweep, other), key=lambda each: len(each.points))
    times: dict[int, list[float]] = {}
    for point in more.points:
        times.setdefault(point.message_bytes, []).append(point.time_ns)
    shared = sum(
        any(_is_time(point.time_ns, time) for time in times.get(point.message_bytes, ()))
        for point in fewer.points
    )
    return 2 * shared >= len(fewer.points)


def _is_time(one_ns: float, other_ns: float) -> bool:
    return abs(one_ns - other_ns) <= max(ROUNDED_NS, ROUNDED_SHARE * one_ns)


def measured_on(fabric: Fabric, sweep: Sweep) -> bool:
    """Whether the fabric's own curves are of this very sweep."""
    placement = sweep.placement_on(fabric)
    measured = {
        point.message_bytes: (point.low_ns, point.time_ns, point.high_ns)
        for curve in fabric.curves
        if (curve.op, curve.ranks, curve.nodes) == (sweep.op, placement.ranks, placement.nodes)
        for point in curve.points
    }
    both = [point for point in sweep.points if point.message_bytes in measured]
    shared = sum(
        any(_is_time(point.time_ns, time) for time in measured[point.message_bytes]) for point in both
    )
    return 0 < len(both) <= 2 * shared
