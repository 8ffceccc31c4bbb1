"""A logarithmic axis that has numbers however small its range is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

_FEW_DECADES: Final = 3
_MANY_DECADES: Final = 12
"""With more of them not every power of ten gets a number: they would lie on each other."""

LEAST, MOST = 1e-30, 1e30
"""What is drawn at all: beyond lie damaged numbers only, whose powers no axis can show."""


def drawable(value: float | None) -> bool:
    """Whether the number has a place on such an axis: known, above zero, neither NaN nor beyond measure."""
    return value is not None and LEAST <= value <= MOST


def log_axis(title: str, values: Sequence[float], words: Callable[[float], str]) -> dict[str, Any]:
    """Return a log axis with a tick at each power of ten; at 2 and 5 too where there are few of those,
    and at every digit within one.

    Values that are not `drawable` are left out; without any the axis goes from 1 to 10.
    """
    values = [value for value in values if drawable(value)] or [1.5, 8.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = [_tick_beyond(min(values), -1), _tick_beyond(max(values), 1)]
    between: Sequence[int] = (1, 2, 5) if high - low <= _FEW_DECADES else (1,)
    if span[1] <= 10 * span[0]:
        between = range(1, 10)
    powers = range(low - 3, high + 4, max(1, math.ceil((high - low) / _MANY_DECADES)))
    # Beyond the data too, for those who zoom out.
    ticks = [float(f"{times}e{power}") for power in powers for times in between]
    return {
        "type": "log",
        "title": {"text": title, "standoff": 12},
        "automargin": True,
        # Plotly fits the range to the data, which may lie between two ticks: then the axis had no number.
        "range": [math.log10(span[0] * 0.97), math.log10(span[1] * 1.03)],
        "tickvals": ticks,
        # `10 kB`, not `10.0 kB`: a tick is exact.
        "ticktext": [words(tick).replace(".00 ", " ").replace(".0 ", " ") for tick in ticks],
    }


def _tick_beyond(value: float, way: int) -> float:
    """Return the next of 1, 2, 5, 10, 20, ... that leaves a tenth of room below (-1) or above (1) a value."""
    power = math.floor(math.log10(value))
    ticks = [float(f"{times}e{exponent}") for exponent in range(power - 1, power + 3) for times in (1, 2, 5)]
    if way < 0:
        return max(tick for tick in ticks if tick <= value / 1.1)
    return min(tick for tick in ticks if tick >= value * 1.1)
