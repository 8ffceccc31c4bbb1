"""Timed collectives of a calibration, and what their samples say: the typical time and a band.

The profiler makes them, on process groups or from the files of other tools; the roofline reads the curves
that come of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.ledger.volume import OPS

HELD: Final = 0.9
"""Share of sound runs that a band holds."""

_MEANT: Final = 0.95
"""Share that a band is made for: what is left over pays for drift after the calibration."""

FEW: Final = 5
"""With fewer samples a size, noise and shape cannot be told apart: they are kept as they are."""

_MEDIAN_SIGMAS: Final = 1.96
"""A 95 % interval of the median, by ranks: n / 2 +- 1.96 sqrt(n) / 2."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one message size took: the typical time and the interval that held 90 % of the samples."""

    message_bytes: int
    """As nccl-tests counts them; 0 for a barrier."""
    time_ns: int
    """Median of the samples."""
    low_ns: int
    """Equal to `time_ns` where there is one sample."""
    high_ns: int
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of one op between the ranks of one group, by message size."""

    op: str
    """One of `ledger.volume.OPS`."""
    ranks: int
    nodes: int
    """Hosts that the group's ranks are on."""
    times_ns: Mapping[int, Sequence[int]]
    """Message bytes -> one time a sample, in the order in which they were taken."""
    source: str
    """Where and when they were measured."""
    sharing: int = 1
    """How many such groups used a host's network cards at once."""

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"unknown op {self.op!r}")
        if not (2 <= self.ranks and 1 <= self.nodes <= self.ranks and self.sharing >= 1):
            raise ValueError(f"{self.op} between {self.ranks} ranks on {self.nodes} hosts cannot be")
        if not self.times_ns or not all(
            size >= 0 and times and min(times) > 0 for size, times in self.times_ns.items()
        ):
            raise ValueError(f"{self.op}: a time or a message size is missing or not above 0")


def summarize(timings: Timings) -> tuple[CurvePoint, ...]:
    """Return one point a message size: median and band of its samples, sorted by size.

    With `FEW` samples a size or more the curve is made to rise with the message: the medians by isotonic
    regression, the band by its envelopes, since a message can be padded to a longer one. The band is made
    wider until the earlier and the later half of the samples hold each other. With fewer samples the band
    is the least and the most.
    """
    sizes = sorted(timings.times_ns)
    samples = [timings.times_ns[size] for size in sizes]
    medians = [_median(times) for times in samples]
    if min(len(times) for times in samples) >= FEW:
        wider = _drift(samples)
        bands = [_band(times) for times in samples]
        lows = _running_min([low / wider for low, _ in bands])
        highs = _running_max([high * wider for _, high in bands])
        medians = _isotonic(medians, [len(times) for times in samples])
    else:
        lows, highs = [float(min(times)) for times in samples], [float(max(times)) for times in samples]
    return tuple(
        CurvePoint(size, max(1, round(median)), max(1, math.floor(low)), max(1, math.ceil(high)), len(times))
        for size, median, low, high, times in zip(sizes, medians, lows, highs, samples, strict=True)
    )


def uncertainty(times_ns: Sequence[int]) -> float | None:
    """Return the half-width of the median's 95 % interval as a share of the median; None for under six.

    The interval is between order statistics and supposes no distribution.
    """
    count = len(times_ns)
    if count < 6:
        return None
    ordered = sorted(times_ns)
    reach = _MEDIAN_SIGMAS * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return (ordered[high] - ordered[low]) / 2 / _median(ordered)


def _median(times: Sequence[int]) -> float:
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else math.sqrt(ordered[middle - 1] * ordered[middle])


def _band(times: Sequence[int]) -> tuple[float, float]:
    """Return the interval that holds `_MEANT` of samples to come, when they are as those seen.

    Of n + 1 samples in random order the next is below the k-th smallest of n with a chance of k / (n + 1).
    Where k would be under 1 the smallest is moved on, away from the median, on the logarithm.
    """
    ordered = [math.log(time) for time in sorted(times)]
    middle = math.log(_median(times))
    at = (1 - _MEANT) / 2 * (len(ordered) + 1)
    if at >= 1:
        step = min(at - 1, len(ordered) - 1.0)
        low, high = _between(ordered, step), _between(ordered[::-1], step)
    else:
        # 0.4: normal samples of 5 to 20 then hold 95 to 98 % of those to come (simulated), of 3 they hold 88 %.
        on = 0.4 * (1 - at) / at
        low, high = ordered[0] - on * (middle - ordered[0]), ordered[-1] + on * (ordered[-1] - middle)
    return math.exp(low), math.exp(high)


def _between(ordered: Sequence[float], at: float) -> float:
    whole = math.floor(at)
    if whole + 1 >= len(ordered):
        return ordered[-1]
    return ordered[whole] + (at - whole) * (ordered[whole + 1] - ordered[whole])


def _drift(samples: Sequence[Sequence[int]]) -> float:
    """Return the factor by which bands must be widened for the earlier half to hold the later, and back."""
    beyond: list[float] = []
    for times in samples:
        half = len(times) // 2
        if half < 3:  # a band of two says nothing
            continue
        for known, new in ((times[:half], times[half:]), (times[half:], times[:half])):
            low, high = _band(known)
            beyond += [max(low / time, time / high) for time in new]
    if not beyond:
        return 1.0
    beyond.sort()
    return max(1.0, beyond[min(len(beyond) - 1, math.ceil(_MEANT * len(beyond)) - 1)])


def _running_min(values: Sequence[float]) -> list[float]:
    """Return for each value the least of it and all after it."""
    least = math.inf
    found = [least := min(least, value) for value in reversed(values)]
    return found[::-1]


def _running_max(values: Sequence[float]) -> list[float]:
    most = 0.0
    return [most := max(most, value) for value in values]


def _isotonic(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the closest rising values, by weighted squares of logarithms (pool adjacent violators).

    Barlow, Bartholomew, Bremner, Brunk, "Statistical Inference under Order Restrictions" (1972).
    """
    pools: list[tuple[float, int, int]] = []  # mean logarithm, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        mean, total, many = math.log(value), weight, 1
        while pools and pools[-1][0] > mean:
            before, heavy, more = pools.pop()
            mean = (mean * total + before * heavy) / (total + heavy)
            total, many = total + heavy, many + more
        pools.append((mean, total, many))
    return [math.exp(mean) for mean, _, many in pools for _ in range(many)]
