"""Fabrics with round numbers, so that costs can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline import Fabric, Link, Quantity


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
