"""How much shorter a step became between two runs, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps, surveyed_steps, watched_steps

RESAMPLES: Final = 2000
BLOCKS: Final = 400
"""Most parts that a run's steps are resampled in. Of longer runs neighbouring steps stay together, which
also keeps slow stretches of a machine whole."""
STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""How many standard errors hold 95 % with 1, 2, ... degrees of freedom; with many it is `NORMAL`."""
NORMAL: Final = 1.96
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

    The interval is a bootstrap's: steps of each run are drawn again with replacement, the middle 95 % of
    the differences of their means is taken. It is widened for few steps, which vary less about their own
    mean than about the true one, and whose spread is itself uncertain (Student). What differs from run to
    run (another host, another job on it) is not in it.
    """
    times = (step_times(before), step_times(after))
    means = [float(values.mean()) if len(values) else None for values in times]
    low = high = None
    if min(len(values) for values in times) >= 2:
        random = np.random.default_rng(0)
        drawn = [_means(values, random) for values in times]
        low, high = (float(value) for value in np.percentile(drawn[0] - drawn[1], (2.5, 97.5)))
    return Change(means[0], means[1], low, high, len(times[0]), len(times[1]))


def _means(times: Times, random: np.random.Generator) -> Times:
    """Return the means of resampled runs."""
    edges = np.unique(np.linspace(0, len(times), min(BLOCKS, len(times)) + 1).astype(np.int64))
    sums, counts = np.add.reduceat(times, edges[:-1]), np.diff(edges)
    picked = random.integers(0, len(sums), size=(RESAMPLES, len(sums)))
    mean = times.mean()
    freedom = len(sums) - 1
    student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL * (1 + 1.21 / freedom)
    widened = (len(sums) / freedom) ** 0.5 * student / NORMAL
    made: Times = mean + widened * (sums[picked].sum(axis=1) / counts[picked].sum(axis=1) - mean)
    return made


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
