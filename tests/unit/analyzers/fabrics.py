"""Fabrics with round numbers, so that costs can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline import Fabric, Link, Quantity, Rates


def quantity(value: float) -> Quantity:
    return Quantity(float(value), "made for a test", "derived")


def link(base_ns: float, step_ns: float, gbps: float) -> Link:
    return Link(quantity(base_ns), Rates(quantity(step_ns), quantity(gbps)))


# Inside a host: 100 ns + 10 ns a hop, 10 GB/s. Between hosts: 50 ns + 1000 ns a hop, 2 GB/s a rank.
ROUND = Fabric(
    name="round",
    title="round numbers",
    provenance="made for a test",
    intra=link(100, 10, 10),
    inter=link(50, 1000, 2),
)
# About what gloo does on one host.
MEASURED_GLOO = replace(
    ROUND, intra=link(0, 40_000, 3), inter=None, measured=True, provenance="measured on this machine"
)
MEASURED = replace(ROUND, measured=True, provenance="measured on this machine")
