"""What a forecast says about time: the price of a plan, and prices of many rows beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Band:
    """An expected value; the band from `low` to `high` holds eight of ten measured ones."""

    expected: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.expected <= self.high:
            raise ValueError(f"band {self.low}..{self.high} does not hold {self.expected}")

    def scaled(self, factor: float) -> Band:
        """Return the band times a factor."""
        return Band(self.expected * factor, self.low * factor, self.high * factor)

    def inverse(self, numerator: float) -> Band:
        """Return numerator / value: a rate from a time."""
        return Band(numerator / self.expected, numerator / self.high, numerator / self.low)


@dataclass(frozen=True, slots=True)
class PlanPrice:
    """What one optimizer step of a plan takes."""

    step_ns: Band
    tokens_per_s_gpu: Band
    mfu: Band | None
    """Model FLOPs over what the GPU could do at its dense peak for the plan's dtype; None if that is
    unknown."""
    hfu: Band | None
    """The same with recomputed operations counted."""
    compute_ns: float
    """Device time of operators on the busiest rank."""
    exposed_ns: Mapping[str, float]
    """Collectives that compute waits for, by cause: tensor, context, expert, data, pipeline."""
    bubble_ns: float
    """Time that the busiest rank of a pipeline waits for others."""
    optimizer_ns: float
    other_ns: float
    """Host-bound time and what each step costs besides."""
    network: str
    assumptions: tuple[str, ...] = field(default=())
    """What the plan did not state and the forecast assumed."""
