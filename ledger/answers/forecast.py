"""A forecast's answer about time: the price of a plan, and prices of many rows next to their measurements."""

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
    """Price of one optimizer step of a plan."""

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
    """Host-bound time, and other costs of each step."""
    network: str
    assumptions: tuple[str, ...] = field(default=())
    """Facts that the plan did not state and the forecast assumed."""


@dataclass(frozen=True, slots=True)
class PricedRow:
    """One row of a table of steps, priced; None if unknown."""

    number: int
    """Place in the file, from 1; the head is not counted."""
    group: str
    model: str
    gpu: str
    gpus: int | None
    metric: str
    reason: str | None
    """Why the row has no price; None if it has one."""
    step_s: Band | None = None
    tok_s_gpu: Band | None = None
    mfu: Band | None = None
    exposed_share: float | None = None
    """Part of the step in which compute waits for collectives or for other stages."""
    memory_gib: Band | None = None
    """Peak bytes that the caching allocator reserves, GiB."""
    fits: bool | None = None
    """Whether the memory fits on the GPU: None if only the upper end of its band does not."""
    assumed: tuple[str, ...] = ()
    """Fields that the row does not state, or states as they cannot be."""
    calibrated_on: int | None = None
    """Number of the row of the calibration file that the price is scaled by."""
    measured_step_s: float | None = None
    measured_memory_gib: float | None = None
    replaced: tuple[str, ...] = ()
    """Values that the row states but that are impossible, and the values priced in their place, one sentence
    each."""

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less 1."""
        if self.step_s is None or self.measured_step_s is None:
            return None
        return self.step_s.expected / self.measured_step_s - 1

    @property
    def within(self) -> bool | None:
        """Whether the measured step time lies in the band."""
        if self.step_s is None or self.measured_step_s is None:
            return None
        return self.step_s.low <= self.measured_step_s <= self.step_s.high


@dataclass(frozen=True, slots=True)
class Scores:
    """Errors of a group of rows, as shares of the measured value."""

    group: str
    rows: int
    priced: int
    measured: int
    """Priced rows that were measured; the other figures are of these."""
    bias: float | None
    """Median of the signed errors."""
    mean: float | None
    median: float | None
    p90: float | None
    largest: float | None
    inside: float | None
    """Share of rows whose measured time lies in the 80 % band."""
    width: float | None
    """Median of high over low, less 1."""
    constant_rate: float | None
    """Mean error of the trivial baseline: one share of the peak for all rows, the group's own median."""
    memory_median: float | None = None


@dataclass(frozen=True, slots=True)
class WeakScaling:
    """Last points of series that differ in the number of GPUs alone, each predicted from its first."""

    series: int
    median: float | None
    p90: float | None
    no_change_median: float | None
    """The trivial baseline: as many tokens/s/GPU as at the first point."""
    no_change_p90: float | None


@dataclass(frozen=True, slots=True)
class RowsForecast:
    """A whole table, priced and scored."""

    rows: tuple[PricedRow, ...]
    scores: tuple[Scores, ...]
    """By group, and all of them under `all`."""
    weak_scaling: WeakScaling
    calibration: str | None = None
    """Name of the file that prices are scaled by."""
    notes: tuple[str, ...] = ()
    """Parts of the table that were not understood."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A run's step on another number of GPUs."""

    world: int
    step_ns: Band
    compute_ns: float
    exposed_ns: Mapping[str, float]
    """Collectives that compute waits for, by the group's mesh dimension or size."""
    other_ns: float
    """Idle and unattributed time, exposed copies."""
    efficiency: Band
    """Work per GPU and second over that of the same machine's `Scaling.base_world` or `strong_base_world`
    ranks."""
    unpriced: tuple[str, ...] = ()
    """Collectives without a price, as `all_reduce over dp`: the expected step counts their recorded time, and
    only the band holds."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A measured run re-priced: weak scaling keeps the work of each GPU, strong scaling that of the step."""

    run: str
    measured_world: int
    measured_step_ns: float
    gpu_before: str | None
    gpu: str | None
    fabric_before: str
    fabric: str
    world: int
    """As asked for."""
    weak: tuple[ScalingPoint, ...]
    strong: tuple[ScalingPoint, ...]
    calibration: str | None = None
    notes: tuple[str, ...] = ()
    base_world: int = 0
    """The fewest ranks whose step has a price with the same work per GPU: efficiency is 1 there."""
    strong_base_world: int = 0
    """The same with the same work per step."""
    dry: bool = False
    """Whether it is a dry run, whose step is itself a forecast."""

    def asked(self, kind: str) -> ScalingPoint | None:
        """Return the point at the number of GPUs that was asked for."""
        points = self.weak if kind == "weak" else self.strong
        return next((point for point in points if point.world == self.world), None)
