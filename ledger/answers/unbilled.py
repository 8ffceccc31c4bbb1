"""The time of a step that is on no bill."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unbilled:
    """The largest part of the slowest rank's mean step that no finding has a price for."""

    rank: int
    time_ns: float
    step_ns: float
    idle: bool
    """Idle, as against unattributed."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not (0 <= self.time_ns < math.inf and 0 < self.step_ns < math.inf):
            raise ValueError(f"unbilled time holds {self.time_ns} of {self.step_ns} ns on rank {self.rank}")
