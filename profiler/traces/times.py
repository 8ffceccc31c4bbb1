"""Microseconds of a chunk as exact nanoseconds."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import numpy as np

from shardtoll.profiler.traces.trace import I64

EXACT_BELOW_US: Final = float(2**43)
"""Below this a float64 keeps nanoseconds: its steps are at most 1/1024 microsecond."""

START_LIMIT_US: Final = 4 * 10**15
DURATION_LIMIT_US: Final = 10**15
"""Times as far from zero as the year 2096, or lasting 30 years, are damage. Start, duration and
`BASE_LIMIT_NS` together stay within 64 bits."""

BASE_LIMIT_NS: Final = 4 * 10**18


def nanoseconds(values: list[Any], limit: int) -> tuple[I64, bool] | None:
    """Return microseconds as nanoseconds and whether they are exact; None where one is no usable number."""
    try:
        found = np.array(values)
    except (OverflowError, ValueError):
        return None
    if found.dtype.kind == "i":
        if found.size and max(int(found.max()), -int(found.min())) >= limit:
            return None
        return found.astype(np.int64) * 1000, True
    if found.dtype.kind != "f":
        return None
    if found.size == 0:
        return np.empty(0, np.int64), True
    low, high = float(found.min()), float(found.max())
    if not (math.isfinite(low) and math.isfinite(high) and -limit < low and high < limit):
        return None
    floor = np.floor(found)
    ns = floor.astype(np.int64) * 1000 + np.rint((found - floor) * 1000).astype(np.int64)
    return ns, max(high, -low) < EXACT_BELOW_US


def exact_nanoseconds(value: Any, limit: int) -> int | None:
    """Return microseconds as nanoseconds, rounded half to even; None where they are no usable number."""
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > 20 or abs(value) >= limit:
            return None
        return int((value * 1000).to_integral_value())
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000 if abs(value) < limit else None
    if isinstance(value, float) and math.isfinite(value) and abs(value) < limit:
        return int(Decimal(value).scaleb(3).to_integral_value())
    return None
