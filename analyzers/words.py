"""Numbers as a reader wants them in a sentence. Exact values stand in the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


STEPS_NAMED: Final = 10
"""A mean below one a step is told as a number in at most so many steps; a rarer one as one in many."""

LEAST_MEAN: Final = 0.01
"""Means a step are known to two places."""


def _scaled(value: float, units: Iterable[tuple[float, str]], least: str) -> str:
    for size, unit in units:
        if value >= size:
            return f"{value / size:.3g} {unit}" if value / size < 1000 else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} {least}"


def duration(time_ns: float | None) -> str:
    """Return a time as `1.23 ms`; `an unknown time` for None."""
    return "an unknown time" if time_ns is None else _scaled(time_ns, _TIMES, "ns")


def size(size_bytes: int | None) -> str:
    """Return a size as `1.05 MB` (1e6); `an unknown size` for None."""
    return "an unknown size" if size_bytes is None else _scaled(size_bytes, _SIZES, "bytes")


def flops(count: int) -> str:
    """Return a count of floating-point operations as `16.8 MFLOP`."""
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} FLOP"


def percent(share: float) -> str:
    """Return a share as `12 %`."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as `rank 3` or `ranks 0-3, 6`."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"


def times(count: float, noun: str, several: str | None = None) -> str:
    """Return `1 all_gather`, `3 all_gathers`, `0.33 all_gathers`; `several` is a plural of its own."""
    if count == 1:
        return f"1 {noun}"
    if several is not None:
        return f"{count:,} {several}"
    return f"{count:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"


def in_steps(each: float, noun: str) -> str:
    """Return how many there are in a mean step: `3 all_gathers`, below one `1 all_gather in 2 steps`.

    >>> in_steps(0.67, "all_gather")
    '2 all_gathers in 3 steps'
    """
    if each >= 1:
        return times(each, noun)
    if each < LEAST_MEAN:
        return f"less than 1 {noun} in {round(1 / LEAST_MEAN)} steps"
    part = Fraction(each).limit_denominator(STEPS_NAMED)
    part = part or Fraction(1, round(1 / each))
    steps = "" if part.denominator == 1 else f" in {part.denominator:,} steps"
    return f"{times(part.numerator, noun)}{steps}"


def place(module: str | None, source: str | None) -> str:
    """Return ` in mlp.up at train.py:12`, as far as known; empty where nothing is."""
    where = ""
    if module is not None:
        # A Sequential's layers have nothing but numbers for names.
        where += " in layers *" if module == "*" else f" in {module}" if module else " in the root module"
    if source:
        where += f" at {source}"
    return where
