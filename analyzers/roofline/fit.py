"""A fabric from measured points: what this machine reached at its best.

Each op's time is modelled as hops x latency + bytes / bandwidth with the hops and bytes of its
ring, pairwise or direct algorithm. A floor must lie under what is measured, and single points are
spoilt by whatever else ran: so only the least time of each (op, group size, message size) counts,
and the line through those is a low quantile regression on relative error rather than least
squares. Koenker and Bassett, "Regression Quantiles" (1978): with two unknowns an optimal line
passes through two of the points, or through one with the other unknown zero; all are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.roofline.direct import direct
from shardtoll.analyzers.roofline.fabric import Fabric, Link, Quantity, Rates
from shardtoll.analyzers.roofline.place import one_node
from shardtoll.analyzers.roofline.ring import pairwise, ring
from shardtoll.ledger import FabricError
from shardtoll.ledger.volume import OPS

Floats = npt.NDArray[np.float64]

QUANTILE: Final = 0.1
"""A fitted floor lies under nine of ten of the best times: an envelope that one lucky point cannot set."""

MOST_LINES: Final = 20_000
"""Pairs of points tried for one line; a larger sweep is thinned evenly to stay under it."""

_UNIT: Final = Rates(Quantity(1.0, "unit", "derived"), Quantity(1.0, "unit", "derived"))
_UNIT_LINK: Final = Link(Quantity(0.0, "unit", "derived"), _UNIT)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One timed collective of a calibration, all its ranks on one host."""

    op: str
    """One of `ledger.volume.OPS`."""
    group_size: int
    message_bytes: int
    """As nccl-tests counts them; 0 for a barrier."""
    time_ns: int

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"unknown op {self.op!r}")
        if self.group_size < 2 or self.message_bytes < 0 or self.time_ns <= 0:
            raise ValueError(f"not a measured collective: {self}")


def _best(points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
    best: dict[tuple[str, int, int], MeasuredPoint] = {}
    for point in points:
        key = (point.op, point.group_size, point.message_bytes)
        if key not in best or point.time_ns < best[key].time_ns:
            best[key] = point
    return list(best.values())


def _terms(point: MeasuredPoint) -> tuple[float, float]:
    """Return (hops, bytes) of the point: the cost terms at 1 ns a hop and 1 GB/s."""
    op, message_bytes = point.op, point.message_bytes
    if op == "barrier":
        op, message_bytes = "all_reduce", 0
    at = one_node(point.group_size)
    for model in (ring, pairwise, direct):
        terms = model(op, message_bytes, at, _UNIT_LINK, None)
        if terms is not None:
            return terms.latency_ns, terms.transfer_ns
    raise AssertionError(f"no model does {point.op}")


def _fit_line(points: Sequence[MeasuredPoint]) -> tuple[float, float]:
    """Return (latency ns a hop, ns a byte), both at least 0, of the low quantile line."""
    most = int((2 * MOST_LINES) ** 0.5)
    if len(points) > most:
        ordered = sorted(points, key=lambda point: (point.message_bytes, point.group_size, point.op))
        points = [ordered[i] for i in np.linspace(0, len(ordered) - 1, most).astype(int)]
    terms = np.array([_terms(point) for point in points], dtype=np.float64)
    times = np.array([point.time_ns for point in points], dtype=np.float64)
    scaled: Floats = terms / times[:, None]
    lines = [(1 / hops, 0.0) for hops, _ in scaled if hops > 0]
    lines += [(0.0, 1 / size) for _, size in scaled if size > 0]
    pairs = np.array(list(combinations(range(len(points)), 2)), dtype=np.intp).reshape(-1, 2)
    first, second = scaled[pairs[:, 0]], scaled[pairs[:, 1]]
    det = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    # Points of the same hops-to-bytes ratio give no line.
    sound = np.abs(det) > 1e-12 * (first[:, 0] * second[:, 1] + first[:, 1] * second[:, 0])
    hop_ns = (second[sound, 1] - first[sound, 1]) / det[sound]
    byte_ns = (first[sound, 0] - second[sound, 0]) / det[sound]
    crossing = np.stack([hop_ns, byte_ns], axis=1)
    crossing = crossing[(crossing >= 0).all(axis=1)]
    candidates: Floats = np.concatenate([np.array(lines, dtype=np.float64).reshape(-1, 2), crossing])
    best, least = candidates[0], np.inf
    for chunk in np.array_split(candidates, max(1, len(candidates) // 1000)):
        over = chunk @ scaled.T - 1.0
        losses = np.where(over > 0, (1 - QUANTILE) * over, -QUANTILE * over).sum(axis=1)
        at = int(losses.argmin())
        if losses[at] < least:
            best, least = chunk[at], float(losses[at])
    return float(best[0]), float(best[1])


def _rates(points: Sequence[MeasuredPoint], source: str, fallback: Rates) -> Rates:
    hop_ns, byte_ns = _fit_line(points)
    latency = Quantity(hop_ns, source, "verified")
    if byte_ns <= 0:
        # The points say nothing of bandwidth: the sizes were too small, or noise hid it.
        return Rates(latency, fallback.bandwidth_gbps)
    return Rates(latency, Quantity(1 / byte_ns, source, "verified"))


def fit_fabric(points: Sequence[MeasuredPoint], base: Fabric, provenance: str) -> Fabric:
    """Return `base` with the links inside a host replaced by what the points show.

    An op with at least two message sizes gets its own line; the default, used by all others, is
    fitted over every point. Whatever the points do not show (between hosts; bandwidth, where only
    tiny messages were timed) stays as in `base`, with its own source. `provenance` says where and
    when the points were measured. Raises FabricError for fewer than two sizes, or groups larger
    than a host of `base`.
    """
    if base.intra is None:
        raise FabricError(f"fabric {base.name} has no link inside a host", "fit over a shipped fabric")
    best = _best(points)
    if len({point.message_bytes for point in best}) < 2:
        raise FabricError(
            f"{len(points)} calibration points of fewer than two message sizes", "measure more sizes"
        )
    widest = max(point.group_size for point in best)
    if base.ranks_per_node is not None and widest > base.ranks_per_node.value:
        raise FabricError(
            f"calibration groups of {widest} ranks span hosts of {base.ranks_per_node.value:g}",
            "measure groups that share one host",
        )
    default = _rates(best, f"{provenance}; all ops, {len(best)} points", base.intra.default)
    per_op = {}
    for op in OPS:
        own = [point for point in best if point.op == op]
        if len({point.message_bytes for point in own}) >= 2:
            per_op[op] = _rates(own, f"{provenance}; {op}, {len(own)} points", base.intra.rates(op))
    none = Quantity(0.0, f"{provenance}; included in the latency of a hop", "verified")
    return replace(
        base,
        provenance=provenance,
        measured=True,
        intra=Link(none, default, per_op),
    )
