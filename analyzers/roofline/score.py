"""How far predictions lie from measurements: relative errors by size band, and how often the band held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardtoll.analyzers.roofline.sweep import Sweep

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20

BANDS: Final[tuple[tuple[str, float], ...]] = (
    ("<=64K", 64 * _KIB),
    ("128K-8M", 8 * _MIB),
    ("16-256M", 256 * _MIB),
    (">=512M", float("inf")),
)
"""Name and largest message of each band, as in shared ROOFLINE.md. Sweeps have powers of two, or what is
just below one because it divides by the ranks: the band above begins right after the one below ends."""


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
    return Score(len(points), median, p90, inside, width)


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

    No model of a size alone can do better than what two columns of the same sweep differ by. None where
    no sweep has both columns.
    """
    found: dict[str, list[float]] = {name: [] for name, _ in BANDS}
    for sweep in sweeps:
        for point in sweep.points:
            if point.inplace_ns is not None:
                difference = abs(point.time_ns - point.inplace_ns) / point.time_ns
                found[band_of(point.message_bytes)].append(difference)
    every = [value for values in found.values() for value in values]
    found[BELOW] = [value for name, values in found.items() if name != BANDS[-1][0] for value in values]
    found["all"] = every
    return {name: quantiles(values) if values else None for name, values in found.items()}


def quantiles(errors: Sequence[float]) -> tuple[float, float]:
    """Return median and 90th percentile of at least one value, interpolated linearly."""
    median, p90 = np.quantile(np.asarray(errors, dtype=float), [0.5, 0.9])
    return float(median), float(p90)
