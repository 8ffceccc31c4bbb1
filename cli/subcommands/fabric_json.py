"""A fabric as JSON values: every number with its unit, its source and how sure it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric, Gpu, Quantity


def to_json(fabric: Fabric) -> dict[str, Any]:
    """Return the facts about the fabric; of measured times only their number."""
    return {
        "name": fabric.name,
        "title": fabric.title,
        "provenance": fabric.provenance,
        "measured": fabric.measured,
        "library": fabric.library,
        "sharp": fabric.sharp,
        "intra": None if fabric.intra is None else fabric.intra.kind,
        "inter": None if fabric.inter is None else fabric.inter.kind,
        "gpu": None if fabric.gpu is None else gpu_to_json(fabric.gpu),
        "numbers": _numbers(fabric.quantities()),
        "guesses": list(fabric.guesses),
        "curves": [
            {"op": curve.op, "ranks": curve.ranks, "nodes": curve.nodes, "points": len(curve.points)}
            for curve in fabric.curves
        ],
    }


def gpu_to_json(gpu: Gpu) -> dict[str, Any]:
    """Return the facts about the GPU."""
    return {
        "name": gpu.name,
        "title": gpu.title,
        "numbers": _numbers(gpu.quantities()),
        "guesses": list(gpu.guesses),
    }


def _numbers(quantities: Iterable[tuple[str, Quantity]]) -> dict[str, Any]:
    return {
        name: {"value": number.value, "source": number.source, "confidence": number.confidence}
        for name, number in quantities
    }
