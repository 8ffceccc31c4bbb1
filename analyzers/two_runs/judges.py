"""The figures of two runs side by side, each judged: exactly where it is exact, else against noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.two_runs.intervals import Intervals, Pair, intervals
from shardtoll.ledger.answers.comparison import Change, Verdict

Array = npt.NDArray[np.float64]
Judge = Callable[[], Change]
"""Gives the change once all rows are known and the intervals were drawn."""

LEAST_SHARE: Final = 0.001
"""Part of the step below which no time's change is worth saying."""
UNVOUCHED: Final = 3
"""If equal operators took another time on a shared machine, times without such an operator are judged only
beyond this multiple of that share. Waiting and idle time is stretched more than compute."""
EQUAL: Final = 1e-9
"""Sums over ranks of whole numbers, divided by their count, agree to that."""


def mean(values: Array | None) -> float:
    """Return the mean; 0 of nothing."""
    return float(values.mean()) if values is not None and len(values) else 0.0


@dataclass(frozen=True, slots=True)
class Floor:
    """Differences from run to run of one program."""

    noise: float
    """A share of each time."""
    off: float
    """By how much a shared machine differs, as a share."""
    step_ns: float

    def of(self, before: Array | None, after: Array | None) -> float:
        """Return it for a time that nothing vouches for, in ns; 0 if that is unknown."""
        if before is None or after is None:
            return 0.0
        return self.share_of(self.noise + UNVOUCHED * self.off, np.abs(before), np.abs(after))

    def share_of(self, share: float, before: Array | None, after: Array | None) -> float:
        """Return a share of the larger mean, but never less than `LEAST_SHARE` of the step."""
        return max(share * max(mean(before), mean(after)), LEAST_SHARE * self.step_ns)


@dataclass
class Rows:
    """Collects rows that were measured in the same steps of each run, and judges them together."""

    guide: tuple[Array, Array]
    """Time of the whole step in these steps."""
    enough: bool
    """Whether there are steps enough to say what is noise."""
    exactly: bool = False
    """Whether both runs are forecasts: their times have no noise, and one step of each is all there is."""
    before: list[Array] = field(default_factory=list)
    after: list[Array] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    drawn: Intervals | None = None

    def timed(
        self, name: str, before: Array | None, after: Array | None, floor: float, *,
        unit: str | None = "ns", pace: tuple[Array, Array] | None = None,
    ) -> Judge:  # fmt: skip
        """Add a noisy row and return what judges it; None if it is not known.

        `floor`: what differs from run to run, in its unit. `pace`: how slow the machine was in each step of
        each run. The row is judged against that, which takes out what all rows have in common.
        """
        means = tuple(None if row is None or not len(row) else float(row.mean()) for row in (before, after))
        if before is None or after is None or not self.enough or None in means:
            verdict: Verdict = "unknown" if None in means else "too few steps"
            return lambda: Change(name, unit, means[0], means[1], verdict)
        if self.exactly:
            return lambda: self._forecast(name, unit, mean(before), mean(after))
        place = len(self.before)
        was, now = (before, after) if pace is None else (before / pace[0], after / pace[1])
        self.before.append(was)
        self.after.append(now)
        self.floors.append(floor)
        off = float(after.mean() - before.mean() - (now.mean() - was.mean()))

        def judge() -> Change:
            assert self.drawn is not None, "rows are judged after `judge_all`"
            low, high = float(self.drawn.low[place]), float(self.drawn.high[place])
            said: Verdict = "more" if low > 0 else "less" if high < 0 else "no change"
            least = float(self.drawn.least[place])
            return Change(name, unit, means[0], means[1], said, low + off, high + off, least)

        return judge

    def _forecast(self, name: str, unit: str | None, was: float, now: float) -> Change:
        """Return how a time that nobody measured changed; below `LEAST_SHARE` of the step is no change."""
        least = LEAST_SHARE * max(mean(times) for times in self.guide) if unit == "ns" else 0.0
        apart = now - was
        said: Verdict = "no change" if abs(apart) <= least else "more" if apart > 0 else "less"
        return Change(name, unit, was, now, said, apart, apart, least)

    def exact(
        self, name: str, before: Array | None, after: Array | None, *,
        unit: str | None = None, scale: float = 1.0, at_least: tuple[bool, bool] = (False, False),
    ) -> Judge:  # fmt: skip
        """Add a row without noise: compared as it is if no run varies, else like a time; None unknown.

        `scale`: what the figures after are times, for another amount of work a step. A figure that is the
        same a step, or the same for equal work, is no change. `at_least`: see `Change`.
        """
        if before is None or after is None:
            return lambda: Change(name, unit, None, None, "unknown")
        if not len(before) or not len(after):
            means = [float(row.mean()) if len(row) else None for row in (before, after)]
            return lambda: Change(name, unit, means[0], means[1], "unknown")
        if any(at_least):
            bounds = float(before.mean()), scale * float(after.mean())
            return lambda: Change(name, unit, *bounds, "unknown", at_least=at_least)
        if _varies(before) or _varies(after):
            if np.array_equal(before, after):
                mean = float(before.mean())
                return lambda: Change(name, unit, mean, mean, "no change")
            return self.timed(name, before, after * scale, 0.0, unit=unit)
        was, raw = float(before[0]), float(after[0])
        now = raw * scale
        same = _equal(was, raw) or _equal(was, now)
        verdict: Verdict = "no change" if same else "more" if now > was else "less"
        return lambda: Change(name, unit, was, now, verdict)

    def pair(self) -> Pair:
        """Return the rows as `intervals` takes them."""
        was = np.array(self.before).reshape(len(self.before), len(self.guide[0]))
        now = np.array(self.after).reshape(len(self.after), len(self.guide[1]))
        return Pair(was, now, self.guide, np.array(self.floors))


def judge_all(*several: Rows) -> None:
    """Draw the intervals of all rows together."""
    asked = [rows for rows in several if rows.before]
    for rows, drawn in zip(asked, intervals([rows.pair() for rows in asked]), strict=True):
        rows.drawn = drawn


def _varies(row: Array) -> bool:
    return float(np.ptp(row)) > EQUAL * max(1.0, float(np.abs(row).max()))


def _equal(value: float, other: float) -> bool:
    return abs(value - other) <= EQUAL * max(1.0, abs(value), abs(other))
