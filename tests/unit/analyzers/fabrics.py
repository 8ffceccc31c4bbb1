"""Fabrics with round numbers, so that costs can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline import (
    Curve,
    CurvePoint,
    Fabric,
    Link,
    Placement,
    Quantity,
    collective_cost,
)


def quantity(value: float) -> Quantity:
    return Quantity(float(value), "made for a test", "derived")


# Inside a host 10 GB/s; between hosts 2 GB/s a rank, of 4 ranks a host.
ROUND = Fabric(
    name="round",
    title="round numbers",
    provenance="made for a test",
    ranks_per_node=quantity(4),
    intra=Link("nvswitch", quantity(10)),
    inter=Link("infiniband", quantity(2), quantity(8), quantity(4)),
)
# About what gloo does on one host.
MEASURED_GLOO = replace(
    ROUND,
    library="gloo",
    intra=Link("memory", quantity(3)),
    inter=None,
    measured=True,
    provenance="measured on this machine",
)
MEASURED = replace(ROUND, measured=True, provenance="measured on this machine")


def predicted_ns(fabric: Fabric, op: str, message_bytes: int, at: Placement) -> int:
    """What the model expects; every op and placement a test asks for is known."""
    cost = collective_cost(fabric, op, message_bytes, at)
    assert cost is not None
    return cost.time_ns


def floor_ns(fabric: Fabric, op: str, message_bytes: int, at: Placement) -> int:
    """What one of twenty sound runs goes below; every op and placement a test asks for is known."""
    cost = collective_cost(fabric, op, message_bytes, at)
    assert cost is not None
    return cost.floor_ns


def timed(fabric: Fabric, op: str, at: Placement, *sizes: int) -> Fabric:
    """The fabric, on which the op was measured: exactly what the model says, within 5 %."""
    points = []
    for size in sizes:
        time_ns = predicted_ns(fabric, op, size, at)
        points.append(CurvePoint(size, time_ns, time_ns * 95 // 100, time_ns * 105 // 100, 20))
    curve = Curve(op, at.ranks, at.nodes, tuple(points), "made for a test", at.sharing)
    return replace(fabric, measured=True, curves=(*fabric.curves, curve))
