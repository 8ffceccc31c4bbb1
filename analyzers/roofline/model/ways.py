"""The time of one collective by each algorithm and protocol that the library has, not only the fastest."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.roofline.machines.fabric import Fabric
from shardtoll.analyzers.roofline.model.cost import Cost, pricing_of
from shardtoll.analyzers.roofline.model.place import Placement


class Way(Struct, frozen=True):
    """One algorithm with one protocol."""

    algorithm: str
    protocol: str
    time_ns: float


def ways(fabric: Fabric, op: str, message_bytes: int, placement: Placement, cost: Cost) -> list[Way]:
    """Return the times by each of them; `cost` is that of the fastest.

    If that was measured or fitted, all are taken to be off by the same factor.
    """
    size = np.array([message_bytes], dtype=np.float64)
    times = {
        (candidate.algorithm, candidate.protocol): float(candidate.time_ns(size)[0])
        for candidate in pricing_of(fabric).model(op, placement).candidates
    }
    best = times.get((cost.algorithm, cost.protocol), 0.0)
    if best <= 0:
        return []
    return [Way(*way, time_ns * cost.time_ns / best) for way, time_ns in times.items()]
