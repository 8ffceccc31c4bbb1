"""Two runs, and those of their steps that are compared: like with like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct

from shardtoll.analyzers.two_runs.intervals import RUN_NOISE
from shardtoll.analyzers.two_runs.judges import Array, Rows, judge_all
from shardtoll.analyzers.two_runs.steps import Chosen, StepSeries, choose, step_series
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import Change

SLOWEST: Final = "step of the slowest rank"
LEAST_INTERVAL: Final = 2
"""Steps of each run without which nothing says how much a step varies."""

T = TypeVar("T")


class TwoRuns(Struct, frozen=True):
    """The common start of `compare` and `verify`."""

    reports: tuple[Report, Report]
    chosen: tuple[Chosen, Chosen]
    timed: tuple[StepSeries, StepSeries]
    """The steps whose times are compared."""

    @classmethod
    def of(cls, before: Report, after: Report, warm_up: int | None = None) -> TwoRuns:
        """Return them with their steps chosen as `choose` says; UsageError if `warm_up` leaves none."""
        chosen = choose(before, after, warm_up)
        timed = step_series(before, chosen[0].timed), step_series(after, chosen[1].timed)
        return cls((before, after), chosen, timed)

    @property
    def are_forecasts(self) -> bool:
        """Whether nobody measured either run: a dry run's times are what the forecast says, without noise."""
        return all(report.run.is_forecast for report in self.reports)

    def each(self, what: Callable[[Report, Chosen], T]) -> tuple[T, T]:
        """Return what a function says of the run before, and of the run after."""
        return what(self.reports[0], self.chosen[0]), what(self.reports[1], self.chosen[1])

    @property
    def slowest(self) -> tuple[Array, Array]:
        """Own work of each timed step on the rank whose mean is longest, in ns."""
        return self.timed[0].slowest, self.timed[1].slowest

    def slowest_change(self) -> Change:
        """Return how the step of the slowest rank changed, with an interval that holds for that time alone.

        With few steps it is shown, but proves nothing. With enough steps `compare` judges
        that time, together with all others.
        """
        before, after = self.slowest
        least = 1 if self.are_forecasts else LEAST_INTERVAL
        rows = Rows(self.slowest, min(len(before), len(after)) >= least, self.are_forecasts)
        floor = RUN_NOISE * max((float(times.mean()) for times in self.slowest if len(times)), default=0.0)
        judge = rows.timed(SLOWEST, before, after, floor)
        judge_all(rows)
        return judge()

    def timed_words(self) -> str:
        """Return which steps are timed, as `watched steps`."""
        before, after = (f"{chosen.level} steps" for chosen in self.chosen)
        return before if before == after else f"{before} before, {after} after"
