"""Numbers as people read them, in one form in every text: decimal units, three digits, `unknown` for None."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Final

UNKNOWN: Final = "unknown"

_TIME: Final = (" ns", " µs", " ms", " s")
_BYTES: Final = (" B", " kB", " MB", " GB", " TB", " PB")
_RATE: Final = (" B/s", " kB/s", " MB/s", " GB/s", " TB/s", " PB/s")
_WORK: Final = (" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP")

STEPS_NAMED: Final = 10
"""A mean below one per step is written as a number in at most so many steps. A rarer one is written as one in
many."""

LEAST_MEAN: Final = 0.01
"""Means per step are known to two places."""


_ONE_DOES: Final = {"have": "has", "are": "is"}


def _digits(value: float) -> str:
    """Return about three significant digits, never in exponent form."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _scaled(value: float | None, units: tuple[str, ...]) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size < 999.5 and float(size).is_integer():
        return f"{sign}{size:.0f}{units[0]}"
    unit = 0
    # 999.6 must become 1.00 of the next unit, not 1000 of this one.
    while size >= 999.5 and unit < len(units) - 1:
        size, unit = size / 1000, unit + 1
    return f"{sign}{_digits(size)}{units[unit]}"


def duration(ns: float | None) -> str:
    """Return nanoseconds as `950 ns`, `12.3 µs`, `4.56 ms` or `7.89 s`; `unknown` for None."""
    return _scaled(ns, _TIME)


def size(count: float | None) -> str:
    """Return bytes as `512 B` or `1.23 MB`; 1 kB is 1,000 bytes, as nccl-tests counts."""
    return _scaled(count, _BYTES)


def some_time(ns: float | None) -> str:
    """Return the same for the middle of a sentence: `an unknown time` for None."""
    return "an unknown time" if ns is None else duration(ns)


def some_size(count: float | None) -> str:
    """Return `size` for the middle of a sentence: `an unknown size` for None."""
    return "an unknown size" if count is None else size(count)


def rate(gbps: float | None) -> str:
    """Return a bandwidth given in GB/s (1e9 bytes) as `12.3 GB/s` or `350 MB/s`."""
    return _scaled(None if gbps is None else gbps * 1e9, _RATE)


def work(flops: float | None) -> str:
    """Return floating-point operations as `1.23 GFLOP`."""
    return _scaled(flops, _WORK)


def percent(fraction: float) -> str:
    """Return a share as `12 %`, below ten as `1.2 %`, below 0.1 with one digit as `0.02 %`."""
    value = abs(100 * fraction)
    if value == 0:
        return "0 %"
    sign = "-" if fraction < 0 else ""
    if value < 0.095:
        return f"{sign}{value:.1g} %" if value >= 1e-4 else f"{sign}<0.0001 %"
    return f"{sign}{value:.0f} %" if value >= 9.95 else f"{sign}{value:.1f} %"


def share(part: float | None, whole: float | None) -> str:
    """Return a part of a whole, see `percent`; unknown without a whole."""
    if part is None or whole is None or not whole > 0:
        return UNKNOWN
    return percent(part / whole)


def factor(value: float | None) -> str:
    """Return a factor, as `1.25x`; `-` if there is none."""
    return "-" if value is None else f"{value:.2f}x"


def number(value: float | None) -> str:
    """Return a count with thousands marked: `12,345`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.4g}"


def quantity(value: float | str | None, unit: str | None = None) -> str:
    """Return a value of an Evidence with its unit; text is returned as it is."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return f"{value} {unit}" if unit else value
    match unit:
        case "ns":
            return duration(value)
        case "bytes":
            return size(value)
        case "GB/s":
            return rate(value)
        case "FLOP":
            return work(value)
        case "share":
            return share(value, 1)
        case "x":
            return f"{value:.4g}x"
        case None:
            return number(value)
        case _:
            return f"{number(value)} {unit}"


def runs(numbers: Iterable[int]) -> str:
    """Return numbers of ranks or steps with runs joined: `0-3, 7`; `none` for none."""
    joined: list[list[int]] = []
    for value in sorted(set(numbers)):
        if joined and value == joined[-1][-1] + 1:
            joined[-1][1:] = [value]
        else:
            joined.append([value])
    return ", ".join("-".join(map(str, run)) for run in joined) or "none"


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as `rank 3` or `ranks 0-3, 6`."""
    different = set(numbers)
    return f"{'rank' if len(different) == 1 else 'ranks'} {runs(different)}"


def others(count: int, verb: str = "") -> str:
    """Return who is left of a job or group without one member: `count` others, and what they do.

    >>> others(7, "wait"), others(1, "wait")
    ('the others wait', 'the other rank waits')
    """
    if count != 1:
        return f"the others {verb}".rstrip()
    return f"the other rank {_ONE_DOES.get(verb, verb and verb + 's')}".rstrip()


def plural(count: float, noun: str, several: str | None = None) -> str:
    """Return `1 step`, `2 steps`, `0.33 steps`; `several` if the plural is not made with s or es."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {several or noun + ('es' if noun.endswith(('s', 'x', 'ch')) else 's')}"


def often(count: float) -> str:
    """Return how often something happens: `once`, `3 times`, `1.5 times`."""
    return "once" if count == 1 else f"{number(count)} times"


def in_steps(each: float, noun: str) -> str:
    """Return how many there are in a mean step: `3 all_gathers`, below one `1 all_gather in 2 steps`.

    >>> in_steps(0.67, "all_gather")
    '2 all_gathers in 3 steps'
    """
    if each >= 1:
        return plural(each, noun)
    if each < LEAST_MEAN:
        return f"less than 1 {noun} in {round(1 / LEAST_MEAN)} steps"
    part = Fraction(each).limit_denominator(STEPS_NAMED)
    part = part or Fraction(1, round(1 / each))
    steps = "" if part.denominator == 1 else f" in {part.denominator:,} steps"
    return f"{plural(part.numerator, noun)}{steps}"


def place(module: str | None, source: str | None) -> str:
    """Return ` in mlp.up at train.py:12`, as far as known; empty if neither is."""
    where = ""
    if module is not None:
        # A Sequential's layers have nothing but numbers for names.
        where += " in layers *" if module == "*" else f" in {module}" if module else " in the root module"
    if source:
        where += f" at {source}"
    return where
