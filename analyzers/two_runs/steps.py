"""Which steps of two runs are compared, and what each of them took and divides into."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.records.levels import (
    alike_steps,
    exposure_doubted,
    in_steps,
    surveyed_steps,
    watched_steps,
)
from shardtoll.ledger.tables.tables import to_frame

WARM_UP: Final = 2
"""First steps left out of runs long enough: they compile, allocate, and open connections."""
LONG: Final = 12
"""Steps from which a run can spare that many; of a shorter one the first is left out."""
SLOW: Final = 5
SLOW_SHARE: Final = 0.1
LEAST_STEPS: Final = 8
"""Fewer steps say too little of how much a step varies."""

PARTS: Final = ("computing", "moving", "waiting", "copies", "idle", "unattributed")
"""Parts of a step: exposed communication is moving and waiting for other ranks."""

ALL_ELSE: Final = "computing and all else"
"""The rest of a watched step, of which only collectives are known."""
UNTOLD: Final = "exposed communication and all else"
"""The rest of a step that does not tell how long communication was exposed, or of a part of it only."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The steps of one run that are compared."""

    timed: tuple[int, ...]
    """Those whose times are compared."""
    surveyed: tuple[int, ...]
    """Those whose operators are compared."""
    left_out: tuple[int, ...]
    level: str
    alike: bool
    """Whether both runs have timed steps of that level: else their times must not be compared."""
    slow: tuple[int, ...] = ()
    """Those of `left_out` that were left out as slow against the steps after them."""


def choose(before: Report, after: Report, warm_up: int | None = None) -> tuple[Chosen, Chosen]:
    """Return the steps of both runs, like with like: watched ones if both have them, else surveyed ones.

    `warm_up`: number of first steps that are left out. None: `WARM_UP`, or 1 of a short run, and those after
    them that are slow against the rest. Raises UsageError if it leaves a run no step.
    """
    kinds = []
    for report in (before, after):
        table = report.tables["steps"]
        every = alike_steps(table)
        if warm_up is not None and warm_up >= len(every) > 0:
            raise UsageError(
                f"--warm-up {warm_up} leaves no step of a run of {len(every)}",
                f"leave out fewer; {LEAST_STEPS} steps must be left for times to be compared",
            )
        first = min(warm_up if warm_up is not None else WARM_UP if len(every) >= LONG else 1, len(every))
        if warm_up is None and len(every) - first < 2:
            first = 0
        left = every[:first]
        kept = set(every[first:])
        kinds.append(
            (
                tuple(step for step in watched_steps(table) if step in kept),
                tuple(step for step in surveyed_steps(table) if step in kept),
                left,
            )
        )
    both_watched = all(watched for watched, _, _ in kinds)
    both_surveyed = all(surveyed for _, surveyed, _ in kinds)
    alike = both_watched or both_surveyed
    chosen = []
    for watched, surveyed, left in kinds:
        is_watched = both_watched or (not both_surveyed and bool(watched))
        timed = watched if is_watched else surveyed
        chosen.append(Chosen(timed, surveyed, left, "watched" if is_watched else "surveyed", alike))
    if warm_up is None:
        chosen = [_settled(report, steps) for report, steps in zip((before, after), chosen, strict=True)]
    return chosen[0], chosen[1]


def _settled(report: Report, chosen: Chosen) -> Chosen:
    """Return it without the leading steps that are slow against the rest, as long as enough are left.

    Slow: longer than the median of the steps after them by two limits. These are `SLOW` of their standard
    deviations (from the median absolute deviation), and `SLOW_SHARE`. One such step widens every interval of
    a short run.
    """
    table = in_steps(report.tables["steps"], chosen.timed).select(["step", "duration_ns", "capture_ns"])
    sums = table.group_by("step").aggregate([("duration_ns", "mean"), ("capture_ns", "mean")]).sort_by("step")
    times = pc.subtract(sums.column("duration_ns_mean"), sums.column("capture_ns_mean")).to_numpy()
    count = 0
    for place in range(min(len(times) - LEAST_STEPS, len(times) // 4)):
        middle = float(np.median(times[place + 1 :]))
        spread = 1.4826 * float(np.median(np.abs(times[place + 1 :] - middle)))
        if times[place] > middle + max(SLOW * spread, SLOW_SHARE * middle):
            count = place + 1
    if not count:
        return chosen
    begin = chosen.timed[count]
    surveyed = tuple(step for step in chosen.surveyed if step >= begin) or chosen.surveyed
    slow = chosen.timed[:count]
    return replace(
        chosen, timed=chosen.timed[count:], surveyed=surveyed, left_out=(*chosen.left_out, *slow), slow=slow
    )


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Each compared step of one run, means over the ranks seen in it, in ns."""

    own: Array
    """(steps,): duration, capture's own work left out."""
    parts: Array
    """(parts, steps), in the order of `PARTS`; they add up to `own`."""
    slowest: Array
    """(steps,): own work on the rank whose mean is longest."""
    slowest_rank: int | None
    untold: int = 0
    """Steps without a record of how long communication was exposed on a rank."""
    at_least: int = 0
    """Steps with only a lower bound of exposed communication; the missing part counts as rest."""

    @property
    def told(self) -> bool:
        """Whether all steps tell all of their exposed communication.

        Else moving, waiting and the rest are known together only: how two lower bounds differ says nothing.
        """
        return not self.untold and not self.at_least

    def scaled(self, scale: float) -> StepSeries:
        """Return it with all times so many times as long."""
        return replace(self, own=self.own * scale, parts=self.parts * scale, slowest=self.slowest * scale)

    def shown(self, *, exposure_told: bool, alike: bool = True) -> Array:
        """Return the parts, with all that is not known apart in the last one.

        Exposed communication is unknown unless `exposure_told`. Figures of surveys are unknown too, unless
        the steps of both runs are `alike`: watched steps do not have them.
        """
        parts: Array = self.parts.copy()
        if not alike:
            surveyed = [part for part, name in enumerate(PARTS[:-1]) if name not in ("moving", "waiting")]
            parts[-1] += parts[surveyed].sum(axis=0)
            parts[surveyed] = 0
        if exposure_told:
            return parts
        parts[-1] += parts[_MOVING] + parts[_WAITING]
        parts[[_MOVING, _WAITING]] = np.nan
        return parts


_MOVING, _WAITING = PARTS.index("moving"), PARTS.index("waiting")


def step_series(report: Report, numbers: tuple[int, ...]) -> StepSeries:
    """Return the series of these steps, in order."""
    frame = to_frame(in_steps(report.tables["steps"], numbers))
    if frame.empty:
        return StepSeries(np.zeros(0), np.zeros((len(PARTS), 0)), np.zeros(0), None)
    duration = (frame["duration_ns"] - frame["capture_ns"]).astype("float64")
    every = pd.Index(sorted(set(frame["step"])))
    waits = waiting(report, numbers, frame)
    # A watched step is divided as surveyed ones are: that measures nothing of the step itself.
    measured = frame["level"] != "watch"
    columns = {
        "computing": frame["compute_ns"].where(measured, 0),
        "moving": frame["exposed_comm_ns"] - waits,
        "waiting": waits,
        "copies": frame["exposed_copy_ns"].where(measured, 0),
        "idle": frame["idle_ns"].where(measured, 0),
    }
    whole = duration.groupby(frame["step"]).mean().reindex(every).to_numpy(dtype=np.float64)
    parts = [
        column.astype("float64").groupby(frame["step"]).mean().reindex(every).to_numpy(dtype=np.float64)
        for column in columns.values()
    ]
    # The rest, so that the parts add up: a step's may be off by the 0.1 % that a record allows.
    parts.append(whole - np.sum(parts, axis=0))
    means = duration.groupby(frame["rank"]).mean()
    rank = int(means.index[int(np.argmax(means.to_numpy(dtype=np.float64)))])
    slow = duration[frame["rank"] == rank].groupby(frame["step"]).mean().reindex(every).ffill().bfill()
    doubted = in_steps(exposure_doubted(report.tables), numbers)
    silent = pc.equal(doubted.column("exposed_comm_ns"), 0)
    untold, least = (
        len(doubted.filter(mask).column("step").unique()) for mask in (silent, pc.invert(silent))
    )
    return StepSeries(whole, np.array(parts), slow.to_numpy(dtype=np.float64), rank, untold, least)


def waiting(report: Report, numbers: tuple[int, ...], steps: pd.DataFrame) -> pd.Series[float]:
    """Return for each row of `steps` the exposed time in which the rank waited for others to arrive.

    For a collective it is the exposed time beyond its transfer. If ranks were not matched it is unknown, and
    all of it counts as moving.
    """
    table = in_steps(report.tables["collectives"], numbers)
    table = table.filter(
        pc.and_(pc.is_valid(table.column("exposed_ns")), pc.is_valid(table.column("transfer_ns")))
    )
    late = pc.max_element_wise(pc.subtract(table.column("exposed_ns"), table.column("transfer_ns")), 0)
    sums = pa.table({"step": table.column("step"), "rank": table.column("rank"), "late": late})
    late_sums = to_frame(sums.group_by(["step", "rank"]).aggregate([("late", "sum")]))
    joined = steps[["step", "rank", "exposed_comm_ns"]].merge(late_sums, on=["step", "rank"], how="left")
    values = np.minimum(
        joined["late_sum"].fillna(0).to_numpy(dtype=np.float64),
        joined["exposed_comm_ns"].to_numpy(dtype=np.float64),
    )
    found_waits: pd.Series[float] = pd.Series(values, index=steps.index)
    return found_waits


def tabulated(
    codes: npt.NDArray[np.int64], rows: int, step: npt.NDArray[np.int64], numbers: tuple[int, ...],
    values: Array, ranks: int,
) -> Array:  # fmt: skip
    """Return (rows, steps): the sum of values of each row's code in each step, over the number of ranks."""
    places = np.searchsorted(np.array(numbers, dtype=np.int64), step)
    flat = np.bincount(codes * len(numbers) + places, weights=values, minlength=rows * len(numbers))
    made: Array = flat.reshape(rows, len(numbers)) / max(1, ranks)
    return made
