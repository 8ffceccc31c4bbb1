"""Numbers as people read them: decimal units, three digits, and `unknown` for what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

UNKNOWN: Final = "unknown"

_TIME: Final = (" ns", " µs", " ms", " s")
_BYTES: Final = (" B", " kB", " MB", " GB", " TB", " PB")
_RATE: Final = (" B/s", " kB/s", " MB/s", " GB/s", " TB/s", " PB/s")
_WORK: Final = (" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP")


def _digits(value: float) -> str:
    """Return about three significant digits, never in exponent form."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _scaled(value: float | None, units: tuple[str, ...]) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size < 999.5 and float(size).is_integer():
        return f"{sign}{size:.0f}{units[0]}"
    at = 0
    # 999.6 must become 1.00 of the next unit, not 1000 of this one.
    while size >= 999.5 and at < len(units) - 1:
        size, at = size / 1000, at + 1
    return f"{sign}{_digits(size)}{units[at]}"


def duration(ns: float | None) -> str:
    """Return nanoseconds as `950 ns`, `12.3 µs`, `4.56 ms` or `7.89 s`."""
    return _scaled(ns, _TIME)


def size(count: float | None) -> str:
    """Return bytes as `512 B` or `1.23 MB`; 1 kB is 1,000 bytes, as nccl-tests counts."""
    return _scaled(count, _BYTES)


def rate(gbps: float | None) -> str:
    """Return a bandwidth given in GB/s (1e9 bytes) as `12.3 GB/s` or `350 MB/s`."""
    return _scaled(None if gbps is None else gbps * 1e9, _RATE)


def work(flops: float | None) -> str:
    """Return floating-point operations as `1.23 GFLOP`."""
    return _scaled(flops, _WORK)


def share(part: float | None, whole: float | None) -> str:
    """Return a part of a whole as `12 %`, below ten as `1.2 %`; unknown without a whole."""
    if part is None or whole is None or not whole > 0:
        return UNKNOWN
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def times(factor: float | None) -> str:
    """Return a factor, as `1.25x`; `-` where there is none."""
    return "-" if factor is None else f"{factor:.2f}x"


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


def ranks(values: Iterable[int]) -> str:
    """Return rank numbers with runs joined: `0-3, 7`; `none` for no ranks."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return `1 step`, `2 steps`; `several` where the plural is not made with s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
