"""How far predictions lie from measurements: relative errors by size band, and how often the band held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardtoll.analyzers.roofline.evaluate.sweep import Sweep

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20

BANDS: Final[tuple[tuple[str, float], ...]] = (
    ("<=64K", 64 * _KIB),
    ("128K-8M", 8 * _MIB),
    ("16-256M", 256 * _MIB),
    (">=512M", float("inf")),
)
"""Name and largest message of each band, as in shared ROOFLINE.md. Sweeps have powers of two, or the next
lower size that divides by the ranks. So the band above begins right after the one below ends."""


TOLERANCE: Final = 0.02
"""A measurement counts as below its floor from that share on."""

BELOW: Final = "<512M"
"""All bands but the last."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One size: what was measured, and what was said of it before."""

    message_bytes: int
    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    floor_ns: float = 0.0
    light_ns: float = 0.0

    @property
    def below_floor(self) -> bool:
        """Whether the measurement took less than the floor, by more than two runs differ."""
        return self.measured_ns < (1 - TOLERANCE) * self.floor_ns

    @property
    def below_light(self) -> bool:
        """Whether the measurement was faster than the speed of light."""
        return self.measured_ns < self.light_ns

    @property
    def error(self) -> float:
        """Relative error, 0 or more."""
        return abs(self.predicted_ns - self.measured_ns) / self.measured_ns

    @property
    def inside(self) -> bool:
        """Whether the measurement lies within the band that was stated."""
        return self.low_ns <= self.measured_ns <= self.high_ns

    @property
    def width(self) -> float:
        """How many times its low end the band's high end is."""
        return self.high_ns / max(self.low_ns, 1.0)


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over some sizes; shares of 1."""

    count: int
    median: float
    p90: float
    inside: float
    """Share of the measurements within their bands."""
    width: float
    """How many times their low ends the bands' high ends are, at the median: a wide band holds anything."""
    below_floor: float
    """Share of the measurements below their floors: at most a twentieth of sound ones."""
    below_light: float
    """Share of those faster than light: none."""


def band_of(message_bytes: int) -> str:
    """Return the name of the band that a size belongs to."""
    return next(name for name, most in BANDS if message_bytes <= most)


def score(points: Sequence[Scored]) -> Score | None:
    """Return median and p90 of the errors, the share inside the bands and their width; None without any."""
    if not points:
        return None
    median, p90 = quantiles([point.error for point in points])
    inside = sum(point.inside for point in points) / len(points)
    width, _ = quantiles([point.width for point in points])
    floor, light = (
        sum(below) / len(points)
        for below in zip(*((point.below_floor, point.below_light) for point in points), strict=True)
    )
    return Score(len(points), median, p90, inside, width, floor, light)


def by_band(points: Iterable[Scored]) -> dict[str, Score | None]:
    """Return the score of each band, smallest sizes first, of what is below the last one, and of `all`."""
    every = list(points)
    bands = {
        name: score([point for point in every if band_of(point.message_bytes) == name]) for name, _ in BANDS
    }
    below = [point for point in every if band_of(point.message_bytes) != BANDS[-1][0]]
    return {**bands, BELOW: score(below), "all": score(every)}


def noise(sweeps: Iterable[Sweep]) -> dict[str, tuple[float, float] | None]:
    """Return by band, and for `all`, median and p90 of |out of place - in place| / out of place.

    No model of a size alone can do better than what two columns of the same sweep differ by. None if no sweep
    has both columns.
    """
    errors_of: dict[str, list[float]] = {name: [] for name, _ in BANDS}
    for sweep in sweeps:
        for point in sweep.points:
            if point.inplace_ns is not None:
                difference = abs(point.time_ns - point.inplace_ns) / point.time_ns
                errors_of[band_of(point.message_bytes)].append(difference)
    every = [value for values in errors_of.values() for value in values]
    errors_of[BELOW] = [
        value for name, values in errors_of.items() if name != BANDS[-1][0] for value in values
    ]
    errors_of["all"] = every
    return {name: quantiles(values) if values else None for name, values in errors_of.items()}


def quantiles(errors: Sequence[float]) -> tuple[float, float]:
    """Return median and 90th percentile of at least one value, interpolated linearly."""
    median, p90 = np.quantile(np.asarray(errors, dtype=float), [0.5, 0.9])
    return float(median), float(p90)
