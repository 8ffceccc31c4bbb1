"""How sure a predicted saving is: replay's own error, clocks, gaps, models and the spread of steps."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.recorded.recorded import Recorded, slowest_ns
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.two_runs.intervals import HURST, RUN_NOISE

APART: Final = 0.86
"""As `HURST`, of runs on CPUs minutes apart, whose hosts do other things meanwhile: the middle of what
Dinda measured. With 28 programs run three times on two busy cores, the median was 0.83."""


class Doubt(Struct, frozen=True):
    """Sources of error of a prediction from these steps."""

    replay_ns: float
    """By how much the unedited replay's mean step differs from that of the step rows."""
    replay_error: float
    """Largest difference of a step and rank from its step row's duration, as a share."""
    clock_ns: float
    """How far the ranks' clocks may be apart where their times were compared."""
    spread_ns: float
    """Standard error of the mean step. The changed run's steps are other ones, with an error of their own."""
    run_ns: float
    """By how much runs of one program differ on a quiet machine, as `compare` has it."""
    unknown_share: float
    """Share of the critical path that is gaps without a reason on record."""
    crowding: float = 0.0
    """By what share ranks that compute on fewer cores than they are may free each other: of what a change
    saves, so much more. 0 where each has a core, where they sleep, and on devices."""

    @property
    def chance_ns(self) -> float:
        """By how much a step may come out shorter or longer, whatever is changed: independent errors."""
        # Two standard errors of a difference of two means.
        spread = 2 * np.sqrt(2) * self.spread_ns
        return float(np.hypot(np.hypot(self.replay_ns, self.clock_ns), np.hypot(spread, self.run_ns)))

    def half_ns(self, saving_ns: float) -> float:
        """Return half the width of a saving's band, models apart.

        Gaps without a reason may belong to what an edit removes, or not: so much of the saving is open.
        """
        return self.chance_ns + abs(saving_ns) * min(1.0, self.unknown_share)


def doubt(context: Context, recorded: Recorded, outcome: Outcome, unknown_share: float) -> Doubt:
    """Return the doubts about predictions from these steps, whose unedited outcome this is."""
    was, now = _rows(context), recorded.step_times(outcome)
    for graph in recorded.graphs:
        for rank, left_out_ns in zip(graph.ranks, graph.left_out_ns.tolist(), strict=True):
            was[graph.step, rank] -= left_out_ns
    errors = [abs(time - was[key]) / was[key] for key, time in now.items() if was.get(key, 0) > 0]
    lasted = slowest_ns({key: was.get(key, 0.0) for key in now})
    frame = context.collectives
    skew = frame["skew_ns"].to_numpy(dtype=np.float64, na_value=np.nan) if "skew_ns" in frame else np.zeros(0)
    skew = np.abs(skew[np.isfinite(skew)])
    return Doubt(
        replay_ns=abs(recorded.lasts_ns(outcome) - lasted),
        replay_error=float(max(errors, default=0.0)),
        clock_ns=float(np.median(skew)) if len(skew) else 0.0,
        spread_ns=_spread(context),
        run_ns=RUN_NOISE * lasted,
        unknown_share=unknown_share,
        crowding=_crowding(context),
    )


def _rows(context: Context) -> dict[tuple[int, int], float]:
    """Return (step, rank) -> the duration of its step row, which is no replay's own measure."""
    rows = context.step_rows
    keys = zip(rows["step"].astype("int64"), rows["rank"].astype("int64"), strict=True)
    return dict(zip(keys, rows["duration_ns"].astype("float64"), strict=True))


def _crowding(context: Context) -> float:
    """Return how many ranks beyond the first stand on each core, times the share of a step that they are
    awake.

    Work that a change takes off all ranks frees cores: ranks that were ready to run go on with theirs. How
    long they were ready is not on record, so it belongs to the band alone.
    """
    shared = crowded(context)
    rows = context.timed_rows
    if shared is None or rows.empty:
        return 0.0
    asleep = (rows["asleep_ns"].astype("float64") / rows["duration_ns"].astype("float64")).mean()
    # If the system tells nothing, they may have been awake throughout.
    awake = 1.0 if np.isnan(asleep) else float(np.clip(1 - asleep, 0.0, 1.0))
    return (shared.ranks / shared.cores - 1) * awake


def _spread(context: Context) -> float:
    """Return the standard error of the mean of the slowest rank's step, over all timed steps."""
    rows = context.timed_rows
    if rows.empty:
        return 0.0
    slowest = rows.groupby("step")["duration_ns"].max().to_numpy(dtype=np.float64)
    if len(slowest) < 2:
        return 0.0
    # The median of deviations: a first step that compiles says nothing of the others.
    deviation = 1.4826 * float(np.median(np.abs(slowest - np.median(slowest))))
    # Steps are not independent, as `compare` has it: what delays one delays its neighbours, and other runs.
    hurst = APART if context.on_cpu else HURST
    return deviation * float(len(slowest) ** (hurst - 1))
