"""The part of a dispatch mode's cost per operator that no clock of the mode's own can see.

The mode times itself from its first line to its last. Before and after that, torch makes Python objects of
the operator's arguments and finds its way back. The operator itself is also called in a slower way. Both are
the same for each operator: they are measured once, on a tiny one, and taken out of every surveyed step.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.profiler.live.cause.pending import Region
from shardtoll.profiler.live.times.awake import Stretch


@dataclass(frozen=True, slots=True)
class Slowing:
    """Time that the mode adds to each operator, in the thread's own time."""

    within_ns: int
    """While the operator runs."""
    around_ns: int
    """Before the mode's first line and after its last."""


def slowed(region: Region, slowing: Slowing | None, thread: Stretch | None) -> tuple[int, int]:
    """Return by how many ns the mode slowed the region's operators, and the time between them.

    If the thread had to share its core, these times are longer by the same factor as all its others.
    """
    if slowing is None:
        return 0, 0
    operators = len(region.ran) // 4
    crowding = 1.0 if thread is None else thread.crowding
    return round(operators * slowing.within_ns * crowding), round(operators * slowing.around_ns * crowding)
