"""Medians that a few bad ends of collectives do not move, and the slope through them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_FOR_DRIFT: Final = 5
MOST_COLLECTIVES: Final = 64
"""If a group has more, the largest are compared, spread over the time: pairs for the drift grow with the
square."""


def apart(ends: pd.DataFrame, least_ns: int, least: int) -> set[int]:
    """Return the clocks of which a rank's ends differ from another's by more than `least_ns`, steadily.

    `ends` has group, match, code (the clock), rank and end, one row a rank of each collective. Steady:
    nine in ten of at least `least` ends lie on the same side of the group's first rank on that clock.
    """
    ends = ends.sort_values(["match", "code", "rank"], kind="stable")
    off = ends["end"] - ends.groupby(["match", "code"])["end"].transform("first")
    by_rank = off.groupby([ends["code"], ends["group"], ends["rank"]])
    low, high = by_rank.quantile(0.1), by_rank.quantile(0.9)
    steady = ((low > least_ns) | (high < -least_ns)) & (by_rank.size() >= least)
    return {int(code) for code in steady.index[steady].get_level_values("code")}


def chosen(weight: Floats) -> Ints:
    """Return which collectives to look at: all, or the heaviest, spread evenly over their order."""
    if len(weight) <= MOST_COLLECTIVES:
        return np.arange(len(weight))
    least = np.sort(weight)[-MOST_COLLECTIVES]
    heavy = np.flatnonzero(weight >= least)
    return heavy[np.unique(np.linspace(0, len(heavy) - 1, MOST_COLLECTIVES).astype(np.int64))]


def fit(apart: Floats, time: Floats, weight: Floats, span: float) -> tuple[Floats, Floats]:
    """Return for each column offset and drift, 0 if that cannot be seen.

    Weighted medians, and for the drift the weighted median of the slopes between pairs (Theil-Sen).
    """
    offset = middle(apart, weight)
    drift = np.zeros(apart.shape[1])
    first, second = np.triu_indices(len(time), 1)
    step = time[second] - time[first]
    far = np.abs(step) > span / 10
    if len(time) < LEAST_FOR_DRIFT or not far.any():
        return offset, drift
    first, second, step = first[far], second[far], step[far]
    slopes = (apart[second] - apart[first]) / step[:, None]
    slope = middle(slopes, weight[first] * weight[second] * np.abs(step))
    level = apart - slope * time[:, None]
    flat = middle(level, weight)
    rest = 1.4826 * middle(np.abs(level - flat), weight)
    seen = np.abs(slope) * span > np.maximum(3 * rest, 10_000)
    return np.where(seen, flat, offset), np.where(seen, slope, drift)


def middle(values: Floats, weight: Floats) -> Floats:
    """Return the weighted median of each column; between two values of equal weight their mean."""
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0)
    total = np.cumsum(weight[order], axis=0)
    half = total[-1] / 2
    low = (total < half * (1 - 1e-12)).sum(axis=0)
    high = np.minimum((total <= half * (1 + 1e-12)).sum(axis=0), len(values) - 1)
    columns = np.arange(values.shape[1])
    middle: Floats = (ranked[low, columns] + ranked[high, columns]) / 2
    return middle
