"""Timed collectives of a calibration, and what their samples say: the typical time and a band.

The profiler makes them, on process groups or from the files of other tools. The roofline reads the resulting
curves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from shardtoll.ledger.records.volume import OPS

_MEANT: Final = 0.95
"""Share that a band is made for: the rest pays for drift after the calibration."""

FEW: Final = 5
"""With fewer samples per size, noise and shape cannot be separated: they are kept as they are."""

LATER: Final = 0.25
MOST_LATER: Final = 1.4
"""Each end of a band is moved further out by this power of its distance from the median, at most so far. The
machine's load may differ when a program runs later. Measured with gloo between 4 ranks on 2 cores and a
changing load, by programs a minute later. Single collectives lay up to 1.4 times outside of bands that
reached to 4 times the median. On an undisturbed machine it adds one per cent."""

NEIGHBOURS: Final = 2
"""Sizes on either side whose delays are taken for a size's own."""

LEVEL: Final = 16
"""Sizes so many times apart that take the same time, and more, are worth telling."""

LEAST_BELOW: Final = 0.7
"""The low end of a band is never less of the least sample than that, nor moved further by drift."""

_MEDIAN_SIGMAS: Final = 1.96
"""A 95 % interval of the median, by ranks: n / 2 +- 1.96 sqrt(n) / 2."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Time of one message size: the typical time and the interval that held 90 % of the samples."""

    message_bytes: int
    """As nccl-tests counts them; 0 for a barrier."""
    time_ns: int
    """Median of the samples."""
    low_ns: int
    """Equal to `time_ns` if there is one sample."""
    high_ns: int
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of one op between the ranks of one group, by message size."""

    op: str
    """One of `ledger.records.volume.OPS`."""
    ranks: int
    nodes: int
    """Hosts that the group's ranks are on."""
    times_ns: Mapping[int, Sequence[int]]
    """Message bytes -> one time a sample, in the order in which they were taken."""
    source: str
    """Place and date of the measurement."""
    sharing: int = 1
    """How many such groups used a host's network cards at once."""

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"unknown op {self.op!r}")
        if not (self.ranks >= 2 and 1 <= self.nodes <= self.ranks and self.sharing >= 1):
            raise ValueError(f"{self.op} between {self.ranks} ranks on {self.nodes} hosts cannot be")
        if not self.times_ns or not all(
            size >= 0 and times and min(times) > 0 for size, times in self.times_ns.items()
        ):
            raise ValueError(f"{self.op}: a time or a message size is missing or not above 0")


def summarize(timings: Timings) -> tuple[CurvePoint, ...]:
    """Return one point per message size: median and band of its samples, sorted by size.

    With `FEW` or more samples per size the curve is made to rise with the message: a message can be padded to
    a longer one. Medians rise by isotonic regression, the band by its envelopes. The band is widened until
    the earlier and the later half of the samples hold each other, and a little more (`LATER`). With fewer
    samples the band is the least and the most.
    """
    sizes = sorted(timings.times_ns)
    samples = [timings.times_ns[size] for size in sizes]
    medians = [_median(times) for times in samples]
    if min(len(times) for times in samples) >= FEW:
        bands, (down, up) = _bands(samples), _drift(samples)
        pairs = list(zip(bands, medians, strict=True))
        lows = _running_min([low / down / _later(median / low) for (low, _), median in pairs])
        highs = _running_max([high * up * _later(high / median) for (_, high), median in pairs])
        medians = _isotonic(medians, [len(times) for times in samples])
    else:
        lows, highs = [float(min(times)) for times in samples], [float(max(times)) for times in samples]
    return tuple(
        CurvePoint(size, max(1, round(median)), max(1, math.floor(low)), max(1, math.ceil(high)), len(times))
        for size, median, low, high, times in zip(sizes, medians, lows, highs, samples, strict=True)
    )


def level(points: Sequence[CurvePoint]) -> tuple[int, int] | None:
    """Return the first and the last size of the longest stretch of one and the same time; sizes above 0.

    None if no stretch reaches further than `LEVEL` times its first size. `summarize` makes medians equal if
    they do not rise with the message: the noise there is larger than the effect of the size.
    """
    above = (point for point in points if point.message_bytes > 0)
    stretches = [
        [point.message_bytes for point in same] for _, same in groupby(above, lambda point: point.time_ns)
    ]
    longest = max(stretches, key=lambda sizes: sizes[-1] / sizes[0], default=None)
    if longest is None or longest[-1] <= LEVEL * longest[0]:
        return None
    return longest[0], longest[-1]


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


def _bands(samples: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return for each size the interval that holds `_MEANT` of samples to come, when they are as those seen.

    With n + 1 samples in random order the next is below the k-th smallest of n with a chance of k / (n + 1).
    Most delays come from the machine and not from the size. A delay is a sample's distance above the least of
    its size. The upper end is a size's least time plus a quantile of the delays of it and its neighbours. The
    quantile is taken in ns or in shares, whichever is less, but no less than its own samples say. The lower
    end has little room, as nothing is quicker than undisturbed. If samples are too few for its quantile, its
    distance below the least is at least that of the least below the next.
    """
    least = [min(times) for times in samples]
    bands = []
    for place_of_size, times in enumerate(samples):
        near = range(max(0, place_of_size - NEIGHBOURS), min(len(samples), place_of_size + NEIGHBOURS + 1))
        times_over = sorted((time / least[size] for size in near for time in samples[size]), reverse=True)
        later = sorted((time - least[size] for size in near for time in samples[size]), reverse=True)
        place = max(0.0, (1 - _MEANT) / 2 * (len(later) + 1) - 1)
        high = min(
            least[place_of_size] * _between(times_over, place), least[place_of_size] + _between(later, place)
        )
        ordered = sorted(times)
        place = (1 - _MEANT) / 2 * (len(ordered) + 1) - 1
        if place >= 0:
            low = _between(ordered, place)
        else:
            step = ordered[0] / ordered[1] if len(ordered) > 1 else 1.0
            low = ordered[0] * max(LEAST_BELOW, step ** (-place / (1 + place)))
        bands.append((low, max(high, _between(ordered[::-1], max(0.0, place)))))
    return bands


def _between(ordered: Sequence[float], place: float) -> float:
    whole = math.floor(place)
    if whole + 1 >= len(ordered):
        return ordered[-1]
    return ordered[whole] + (place - whole) * (ordered[whole + 1] - ordered[whole])


def _later(distance: float) -> float:
    further: float = max(1.0, distance) ** LATER
    return min(MOST_LATER, further)


def _drift(samples: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the factors by which the two ends of bands must move out. With them the earlier half of the
    samples holds the later one, and the later half the earlier one."""
    halves = [(times[: len(times) // 2], times[len(times) // 2 :]) for times in samples]
    below: list[float] = []
    above: list[float] = []
    for fitted, new in ((0, 1), (1, 0)):
        for (low, high), pair in zip(_bands([pair[fitted] for pair in halves]), halves, strict=True):
            below += [low / time for time in pair[new]]
            above += [time / high for time in pair[new]]
    place = math.ceil((1 + _MEANT) / 2 * len(below)) - 1
    low, high = (max(1.0, sorted(ratios)[place]) for ratios in (below, above))
    return min(low, 1 / LEAST_BELOW), high


def _running_min(values: Sequence[float]) -> list[float]:
    """Return for each value the least of it and all after it."""
    least = math.inf
    least_from_end = [least := min(least, value) for value in reversed(values)]
    return least_from_end[::-1]


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
