"""The time of a step that is on no bill."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unbilled:
    """The largest part of a rank's mean step that no finding has a price for, of the rank with most of it."""

    rank: int
    time_ns: float
    step_ns: float
    idle: bool
    """Whether the time is idle; else it is unattributed."""
    doing: str | None = None
    """The host's work in most of the idle time: an annotation, or `stall.GRAPH_CAPTURE`; None if unknown."""
    source: str | None = None
    """The line of the user's own code that the host was in then; None if no frames show it."""
    library: str | None = None
    """The innermost function that was open for most of it, if that is not the user's."""
    doing_ns: float | None = None
    """Time the host spent on that in a mean step; None if none of these is known."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not (0 <= self.time_ns < math.inf and 0 < self.step_ns < math.inf):
            raise ValueError(f"unbilled time holds {self.time_ns} of {self.step_ns} ns on rank {self.rank}")
