"""Intervals of how much times of a step changed between two runs, of many times together.

Each run is a short series of steps that are not independent: slow stretches last, and other jobs come and
go. Four things are done about that.

- Blocks of neighbouring steps are drawn again, not steps (circular block bootstrap: Politis and Romano, "A
  circular block-resampling procedure for stationary data", 1992). All rows of a run are drawn together.
- Block means still depend on each other, as load of hosts is self-similar. Its Hurst parameters are 0.73 to
  0.99, most of them high (Dinda, "The statistical properties of host load", Scientific Programming, 1999). So
  the mean of b blocks varies by b^(H - 1) of one block's spread, not by b^(-1/2). `HURST` is the low end of
  those. benchmarks/compare_noise.py measures whether the intervals hold with it.
- The intervals hold together. The largest studentised deviation over all rows sets how many standard errors
  wide they are (max-T: Westfall and Young, 1993). Student's t is used, as blocks are few.
- Differences from run to run are in neither run (Kalibera and Jones, "Rigorous benchmarking in reasonable
  time", 2013). So a share of each time, `floor`, is added.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

RESAMPLES: Final = 1000
CONFIDENCE: Final = 0.95
RUN_NOISE: Final = 0.005
"""Share of a time by which runs of one program differ on one quiet machine: layout in memory, clocks."""
HURST: Final = 0.75
MOST_STEPS: Final = 400
"""Steps at most: in longer runs neighbouring steps are folded into so many."""
LEAST_BLOCKS: Final = 5
POWER: Final = NormalDist().inv_cdf(0.8)
"""Standard errors by which a change must exceed the interval's half to be seen in four of five cases."""
_AT_ONCE: Final = 256

Array = npt.NDArray[np.float64]


class Pair(Struct, frozen=True):
    """Rows that were measured in the same steps of each run."""

    before: Array
    """(rows, steps of the run before)"""
    after: Array
    guide: tuple[Array, Array]
    """The time of the whole step, from which the length of blocks is read."""
    floor: Array
    """For each row what differs from run to run, in its unit."""


class Intervals(Struct, frozen=True):
    """For each row of a pair: ends of the interval of the difference, and the least change that is seen."""

    low: Array
    high: Array
    least: Array
    error: Array
    """One standard error of the difference."""


def intervals(pairs: Sequence[Pair], seed: int = 0) -> list[Intervals]:
    """Return the intervals of each pair's rows, which all hold in `CONFIDENCE` of cases."""
    drawn = [_Drawn.of(pair, seed) for pair in pairs]
    most = np.zeros(RESAMPLES)
    for series in drawn:
        np.maximum(most, series.largest(), out=most)
    normal = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    reach = max(normal, float(np.quantile(most, CONFIDENCE)))
    made = []
    for series, pair in zip(drawn, pairs, strict=True):
        half = student(reach, series.freedom) * series.error + pair.floor
        middle = series.difference
        made.append(Intervals(middle - half, middle + half, half + POWER * series.error, series.error))
    return made


def student(normal: float, freedom: Array) -> Array:
    """Return how many standard errors hold with Student's t what `normal` of them hold of a normal one.

    Abramowitz and Stegun, "Handbook of mathematical functions" (1964), 26.7.5.
    """
    z, v = normal, np.maximum(freedom, 1.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    made = np.full(len(v), z)
    for power, term in enumerate(terms, start=1):
        made += term / v**power
    return made


def block_length(series: Array) -> int:
    """Return how many neighbouring steps are drawn together: more where they hang together longer.

    At least n^(1/3), the order that makes the bootstrap's variance best. At least twice the integrated
    autocorrelation time, summed while positive (Geyer, 1992). At most as many as leave `LEAST_BLOCKS`.
    """
    count = len(series)
    centred = series - series.mean()
    power = float(centred @ centred)
    time = 1.0
    if power > 0:
        for lag in range(1, count // 2):
            along = float(centred[lag:] @ centred[:-lag]) / power
            if along <= 0:
                break
            time += 2 * along
    wanted: int = math.ceil(max(math.pow(count, 1 / 3), 2 * time if time > 2 else 0.0))
    return max(1, min(wanted, count // LEAST_BLOCKS))


def fold(values: Array) -> Array:
    """Return the steps of long runs folded into `MOST_STEPS` means of neighbours."""
    count = values.shape[-1]
    if count <= MOST_STEPS:
        return values
    edges = np.unique(np.linspace(0, count, MOST_STEPS + 1).astype(np.int64))
    folded: Array = np.add.reduceat(values, edges[:-1], axis=-1) / np.diff(edges)
    return folded


class _Drawn(Struct, frozen=True):
    """A pair's rows and how its steps were drawn."""

    rows: tuple[Array, Array]
    weights: tuple[Array, Array]
    """(resamples, steps): how often a step was drawn, over how many were."""
    widened: tuple[float, float]
    difference: Array
    error: Array
    freedom: Array

    @classmethod
    def of(cls, pair: Pair, seed: int) -> _Drawn:
        rows = fold(pair.before), fold(pair.after)
        weights, widened, blocks = [], [], []
        for values, guide in zip(rows, pair.guide, strict=True):
            length = block_length(fold(guide))
            count = values.shape[1]
            blocks.append(count / length)
            weights.append(_weights(count, length, _random(guide, seed)))
            # Block means vary less about their own mean than about the true one.
            widened.append(math.sqrt(blocks[-1] / (blocks[-1] - 1)) * blocks[-1] ** (HURST - 0.5))
        variances = [
            np.concatenate([_deviations(part, weight, wide).var(axis=1, ddof=1) for part in _parts(values)])
            if len(values)
            else np.zeros(0)
            for values, weight, wide in zip(rows, weights, widened, strict=True)
        ]
        total = variances[0] + variances[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            # Welch and Satterthwaite's degrees of freedom, blocks for observations.
            freedom = total**2 / sum(
                variance**2 / (count - 1) for variance, count in zip(variances, blocks, strict=True)
            )
        freedom = np.where(np.isfinite(freedom), freedom, min(blocks) - 1)
        # Means of the steps themselves: folds may be of one step more or less.
        means = [values.mean(axis=1) if values.shape[1] else np.zeros(len(values))
                 for values in (pair.before, pair.after)]  # fmt: skip
        return cls(rows, (weights[0], weights[1]), (widened[0], widened[1]), means[1] - means[0],
                   np.sqrt(total), freedom)  # fmt: skip

    def largest(self) -> Array:
        """Return for each resample the largest deviation of any row, in its standard errors."""
        most = np.zeros(RESAMPLES)
        begin = 0
        for parts in zip(_parts(self.rows[0]), _parts(self.rows[1]), strict=True):
            was, now = (
                _deviations(part, weight, wide)
                for part, weight, wide in zip(parts, self.weights, self.widened, strict=True)
            )
            error = self.error[begin : begin + len(was)]
            begin += len(was)
            sure = error > 0
            if sure.any():
                np.maximum(most, (np.abs(now - was)[sure] / error[sure, None]).max(axis=0), out=most)
        return most


def _random(guide: Array, seed: int) -> np.random.Generator:
    """Return a generator for one run: the same on either side, so that A and B swapped say the same."""
    return np.random.default_rng((seed, zlib.crc32(np.ascontiguousarray(guide).tobytes())))


def _parts(rows: Array) -> list[Array]:
    return [rows[begin : begin + _AT_ONCE] for begin in range(0, len(rows), _AT_ONCE)]


def _weights(count: int, length: int, random: np.random.Generator) -> Array:
    blocks = math.ceil(count / length)
    starts = random.integers(0, count, size=(RESAMPLES, blocks, 1))
    steps = ((starts + np.arange(length)) % count).reshape(RESAMPLES, -1)
    flat = (steps + count * np.arange(RESAMPLES)[:, None]).ravel()
    drawn = np.bincount(flat, minlength=RESAMPLES * count).reshape(RESAMPLES, count)
    weights: Array = drawn / steps.shape[1]
    return weights


def _deviations(rows: Array, weights: Array, widened: float) -> Array:
    """Return (rows, resamples): how far the mean of each resample lies from the rows' own."""
    # Not a matrix product, whose sums (and so the last digits) depend on how many threads a library takes.
    means = np.einsum("rs,ds->rd", rows, weights)
    made: Array = widened * (means - rows.mean(axis=1)[:, None])
    return made
