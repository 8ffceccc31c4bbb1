"""How much shorter a step became between two runs, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.compare_intervals import RUN_NOISE, Pair, intervals
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps, surveyed_steps, watched_steps

SETTLING: Final = 1
"""First steps left out where none was only watched: they set things up (compile, allocate, first batch)."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Change:
    """Mean step times in ns, and their difference with its interval; None unknown."""

    before_ns: float | None
    after_ns: float | None
    low_ns: float | None
    high_ns: float | None
    steps_before: int
    steps_after: int

    @property
    def saved_ns(self) -> float | None:
        """Before less after."""
        if self.before_ns is None or self.after_ns is None:
            return None
        return self.before_ns - self.after_ns


def step_times(report: Report) -> Times:
    """Return the durations of the steps on the slowest rank, in ns, capture's own work left out.

    Of the steps that all ranks watched where there are such, else of those looked at in one way on all
    ranks, without the first.
    """
    table = report.tables["steps"]
    numbers = watched_steps(table)
    if not numbers:
        numbers = settled(alike_steps(table))
    frame = report.steps
    frame = frame[frame["step"].isin(numbers)].sort_values(["rank", "step"], kind="stable")
    if frame.empty:
        return np.empty(0)
    own = (frame["duration_ns"] - frame["capture_ns"]).astype("float64")
    means = own.groupby(frame["rank"]).mean()
    slowest: Times = own[frame["rank"] == means.idxmax()].to_numpy(dtype=np.float64)
    return slowest


def settled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps without the first, where two are left then."""
    return numbers[SETTLING:] if len(numbers) > SETTLING + 1 else numbers


def change(before: Report, after: Report) -> Change:
    """Return how the mean step of the slowest rank changed.

    The interval is that of `compare` for one time (see `compare_intervals`): neighbouring steps are drawn
    together, as slow stretches of a machine last, and what runs of one program differ by is added. Drawn
    one by one, they would take every fourth pair of runs of one program for a change.
    """
    times = (step_times(before), step_times(after))
    means = [float(values.mean()) if len(values) else None for values in times]
    low = high = None
    if min(len(values) for values in times) >= 2:
        floor = RUN_NOISE * max(float(values.mean()) for values in times)
        (found,) = intervals([Pair(times[0][None], times[1][None], times, np.array([floor]))])
        low, high = -float(found.high[0]), -float(found.low[0])
    return Change(means[0], means[1], low, high, len(times[0]), len(times[1]))


def level_words(report: Report) -> str:
    """Return how a run's steps were looked at: `surveyed`, `watched` or `partly watched`."""
    table = report.tables["steps"]
    if not watched_steps(table):
        return "surveyed"
    return "partly watched" if surveyed_steps(table) else "watched"


def timed_words(before: Report, after: Report) -> str:
    """Return which steps `step_times` takes, as `watched steps`."""
    was, now = (
        "watched steps" if watched_steps(report.tables["steps"]) else "surveyed steps"
        for report in (before, after)
    )
    return was if was == now else f"{was} before, {now} after"
