"""The cut of a step, layer by layer: slow and plain, to hold the vectorised one against."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.profiler.live.cause.accounting import Interval, intersect, subtract, union


def partition(step: Interval, layers: Sequence[Sequence[Interval]]) -> list[list[Interval]]:
    """Cut the step into one list of disjoint intervals a layer, and a last one for the rest.

    Earlier layers win. The lengths of all lists add up to the step's length exactly.
    """
    rest: list[Interval] = union([step])
    parts: list[list[Interval]] = []
    for layer in layers:
        claimed = union(layer)
        parts.append(intersect(rest, claimed))
        rest = subtract(rest, claimed)
    parts.append(rest)
    return parts
