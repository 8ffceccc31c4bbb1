"""Times of one collective as they were measured, by message size; what lies between and beyond the sizes.

Between two sizes the logarithm of the time is a monotone cubic of the logarithm of the size. It goes through
every point and rises wherever the points do (Fritsch and Butland, "A method for constructing local monotone
piecewise cubic interpolants", 1984). Tested on published sweeps of NVLink and InfiniBand fabrics, each known
at every second size (4x apart). Its median error is 1.4 %; straight lines have 1.7 %. Beyond the sizes the
time follows the shape of a model, scaled to meet the last point, and is never held there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from msgspec import Struct

from shardtoll.ledger.measured.measured import FEW, CurvePoint, Timings, summarize
from shardtoll.ledger.records.volume import OPS

__all__ = ["Curve", "CurvePoint", "Shape", "curve_of", "merged"]

Shape = Callable[[float], float | None]
"""Message bytes -> time of a model, in any unit: only ratios are used. None: it does not know."""

REPEAT: Final = 0.015
"""Share by which a size's average differs from another run's on a sound fabric. Measured on 8x H100, one
all-reduce sweep timed twice: 1 % at the median over all sizes and 5 % at the ninth decile (shared reference,
ROOFLINE.md)."""

ROUGH: Final = 0.9
"""Times the roughness around a size that a curve of few samples may be off. With `REPEAT` it holds nine of
ten times that were left out of published sweeps at every second size."""

SMOOTH: Final = 0.5
"""The same for the place furthest from two points of many samples. If one of a kink's points is left out, the
kink is off by half its size."""

PER_DOUBLING: Final = 0.06
"""Share by which the band widens on each side with every doubling of the distance from the last point."""


@dataclass(frozen=True)
class Curve:
    """One op between `ranks` ranks on `nodes` hosts, sorted by message size."""

    op: str
    """One of `ledger.records.volume.OPS`."""
    ranks: int
    nodes: int
    points: tuple[CurvePoint, ...]
    source: str
    """Place and time of the measurement."""
    sharing: int = 1
    """How many such groups used a host's network cards at once."""

    def __post_init__(self) -> None:
        sizes = [point.message_bytes for point in self.points]
        if not sizes or any(size >= other for size, other in pairwise(sizes)):
            raise ValueError(f"a curve of {self.op} needs points of rising message sizes")
        for point in self.points:
            if not 0 < point.low_ns <= point.time_ns <= point.high_ns:
                raise ValueError(f"a curve of {self.op} has times that cannot be: {point}")

    def time_ns(self, message_bytes: float, shape: Shape | None = None) -> float | None:
        """Return the typical time; None beyond the points if its continuation is unknown."""
        return self._at(self._times, message_bytes, shape)

    def band_ns(self, message_bytes: float, shape: Shape | None = None) -> tuple[float, float] | None:
        """Return the interval that holds nine of ten sound runs.

        It is wider between points by how rough the curve is there, and beyond them with the distance.
        """
        low, high = (self._at(ends, message_bytes, shape) for ends in (self._lows, self._highs))
        if low is None or high is None:
            return None
        wider = math.exp(self._slack(message_bytes))
        return low / wider, high * wider

    def inside(self, message_bytes: float) -> bool:
        """Whether a size lies between the smallest and the largest measured."""
        return self.points[0].message_bytes <= message_bytes <= self.points[-1].message_bytes

    @cached_property
    def _logs(self) -> list[float]:
        return [_log(point.message_bytes) for point in self.points]

    @cached_property
    def _times(self) -> _Line:
        return _line(self._logs, [point.time_ns for point in self.points])

    @cached_property
    def _lows(self) -> _Line:
        return _line(self._logs, [point.low_ns for point in self.points])

    @cached_property
    def _highs(self) -> _Line:
        return _line(self._logs, [point.high_ns for point in self.points])

    @cached_property
    def _rough(self) -> list[float]:
        """How far each inner point lies from the straight line between its neighbours, as a logarithm."""
        logs, times = self._logs, self._times.heights
        rough = [0.0] * len(logs)
        for place in range(1, len(logs) - 1):
            share = (logs[place] - logs[place - 1]) / (logs[place + 1] - logs[place - 1])
            rough[place] = abs(
                times[place] - times[place - 1] - share * (times[place + 1] - times[place - 1])
            )
        return rough

    def _at(self, line: _Line, message_bytes: float, shape: Shape | None) -> float | None:
        edge = min(max(message_bytes, self.points[0].message_bytes), self.points[-1].message_bytes)
        time = line.at(_log(edge))
        if edge == message_bytes:
            return time
        if shape is not None:
            here, there = shape(edge), shape(message_bytes)
            if here and there and math.isfinite(here) and math.isfinite(there):
                return time * there / here
        return self._affine(line, message_bytes, edge)

    def _affine(self, line: _Line, message_bytes: float, edge: float) -> float | None:
        """Return latency + bytes / bandwidth through the two outermost points; None if there is only one."""
        if len(self.points) < 2:
            return None
        two = (0, 1) if edge == self.points[0].message_bytes else (-2, -1)
        near, far = (self.points[place].message_bytes for place in two)
        near_ns, far_ns = (math.exp(line.heights[place]) for place in two)
        ns_per_byte = max(0.0, (far_ns - near_ns) / (far - near))
        at_edge = near_ns if two[0] == 0 else far_ns
        if message_bytes > edge:
            # If noise hides the slope, a byte costs at most its share of a time without latency.
            return at_edge + (message_bytes - edge) * (ns_per_byte or at_edge / max(edge, 1))
        return max(at_edge - (edge - message_bytes) * ns_per_byte, at_edge * message_bytes / max(edge, 1))

    def _slack(self, message_bytes: float) -> float:
        log, logs = _log(message_bytes), self._logs
        if not self.inside(message_bytes):
            edge = logs[0] if log < logs[0] else logs[-1]
            return self._noise(0 if log < logs[0] else len(logs) - 1) + math.log1p(PER_DOUBLING) * (
                abs(log - edge) / math.log(2)
            )
        place = min(max(bisect_right(logs, log) - 1, 0), max(0, len(logs) - 2))
        if len(logs) == 1 or any(point.samples < FEW for point in self.points):
            return self._noise(place)
        share = (log - logs[place]) / (logs[place + 1] - logs[place])
        return SMOOTH * 4 * share * (1 - share) * max(self._rough[place : place + 2])

    def _noise(self, place: int) -> float:
        if all(point.samples >= FEW for point in self.points):
            return 0.0
        return REPEAT + ROUGH * max(self._rough[max(0, place - 1) : place + 3])


def curve_of(timings: Timings) -> Curve:
    """Return the curve of one group's samples."""
    return Curve(
        timings.op, timings.ranks, timings.nodes, summarize(timings), timings.source, timings.sharing
    )


def merged(curves: Iterable[Curve]) -> tuple[Curve, ...]:
    """Return one curve an op and placement; of several points of one size the one of most samples stays.

    If two have as many samples, the later one stays: a new calibration replaces the old.
    """
    kept: dict[tuple[str, int, int, int], Curve] = {}
    for curve in curves:
        key = (curve.op, curve.ranks, curve.nodes, curve.sharing)
        before = kept.get(key)
        if before is not None:
            points = {point.message_bytes: point for point in before.points}
            for point in curve.points:
                old = points.get(point.message_bytes)
                if old is None or point.samples >= old.samples:
                    points[point.message_bytes] = point
            source = curve.source if before.source == curve.source else f"{before.source}; {curve.source}"
            ordered = tuple(points[size] for size in sorted(points))
            curve = Curve(curve.op, curve.ranks, curve.nodes, ordered, source, curve.sharing)
        kept[key] = curve
    return tuple(kept[key] for key in sorted(kept, key=lambda key: (OPS.index(key[0]), *key[1:])))


class _Line(Struct, frozen=True):
    """A monotone cubic through (place, height), its slope at each."""

    places: Sequence[float]
    heights: Sequence[float]
    slopes: Sequence[float]

    def at(self, place: float) -> float:
        """Return e to the height at a place between the first and the last."""
        if len(self.places) == 1:
            return math.exp(self.heights[0])
        left = min(max(bisect_right(self.places, place) - 1, 0), len(self.places) - 2)
        width = self.places[left + 1] - self.places[left]
        share = (place - self.places[left]) / width
        rest = 1 - share
        height = (
            (1 + 2 * share) * rest**2 * self.heights[left]
            + (3 - 2 * share) * share**2 * self.heights[left + 1]
            + share * rest * width * (rest * self.slopes[left] - share * self.slopes[left + 1])
        )
        return math.exp(height)


def _log(message_bytes: float) -> float:
    # A size of 0 has no logarithm; half a byte lies below every other.
    return math.log(max(message_bytes, 0.5))


def _line(places: Sequence[float], times: Sequence[float]) -> _Line:
    heights = [math.log(time) for time in times]
    if len(places) == 1:
        return _Line(places, heights, [0.0])
    widths = [right - left for left, right in pairwise(places)]
    rises = [(heights[place + 1] - heights[place]) / width for place, width in enumerate(widths)]
    slopes = [rises[0]]
    for place in range(1, len(widths)):
        before, after = rises[place - 1], rises[place]
        if before * after <= 0:
            slopes.append(0.0)
            continue
        # Harmonic mean, weighted by the widths: at most three times the flatter rise, so no overshoot.
        weight, other_weight = 2 * widths[place] + widths[place - 1], widths[place] + 2 * widths[place - 1]
        slopes.append((weight + other_weight) / (weight / before + other_weight / after))
    return _Line(places, heights, [*slopes, rises[-1]])
