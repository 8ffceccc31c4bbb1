"""Each rank's time per step, in parts that add up to it, and the figures of steps that were only watched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger import Report
from shardtoll.ledger.records.columns import literal
from shardtoll.ledger.records.levels import (
    exposure_doubted,
    exposure_told,
    in_steps,
    means_by_rank,
    surveyed_steps,
    watched_steps,
)

PARTS: Final = (
    ("compute_ns", "compute"),
    ("exposed_comm_ns", "exposed comm"),
    ("exposed_copy_ns", "exposed copies"),
    ("idle_ns", "idle"),
    ("unattributed_ns", "unattributed"),
)
"""The parts of a step, which add up to its duration, and the words for them."""

WATCHED_PARTS: Final = ("exposed_comm_ns", "unattributed_ns")
"""The parts that a watched step knows; the others are somewhere in its unattributed time."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """The mean step of one rank, or of several folded into one; all times in ns.

    Over its watched steps, if surveyed ones show how they divide. Else over the surveyed ones, or over
    watched ones that nothing divides.
    """

    ranks: tuple[int, ...]
    steps: int
    total_ns: float
    """The step as every view shows it, and as the verdict counts it: a watched one without capture's own
    work, a surveyed one with it."""
    parts_ns: tuple[float | None, ...]
    """In the order of `PARTS`, which add up to `total_ns`; None if only watched steps are on record, which do
    not show it."""
    waiting_ns: float | None
    """The part of exposed communication spent waiting for late ranks; None if unknown."""
    moving_ns: float | None
    """The part spent while data moved."""
    unsplit_ns: float | None
    """The part that is neither known to be waiting nor to be moving; None if unknown, as in older reports."""
    capture_ns: float
    """The part of unattributed time that was capture's own work: 0 of a watched step, which leaves it out."""
    left_out_ns: float
    """Capture's own work in a watched step, which is in no other figure; 0 of a surveyed one."""
    watched_ns: float | None = None
    """The mean watched step, capture left out; None if none was watched."""
    watched_comm_ns: float | None = None
    """Exposed communication in a watched step, over those in which it is known; None if there is none."""
    comm_at_least: bool = False
    """Whether that is a lower bound, as exposed time is unknown for some collectives of these steps."""
    error_ns: float | None = None
    """Possible error of compute and idle time, as watched steps are divided like surveyed ones. None if the
    parts are not of divided steps."""
    surveyed_ns: float | None = None
    """The mean surveyed step, recording included; None if none was surveyed."""

    @property
    def divided(self) -> bool:
        """Whether the parts are those of watched steps."""
        return self.error_ns is not None

    @property
    def recorded_whole(self) -> bool:
        """Whether the parts are those of surveyed steps, whose recording is part of them."""
        return self.surveyed_ns is not None and not self.divided

    @property
    def step_ns(self) -> float:
        """The truest mean of a step: watched steps are hardly slowed by capture."""
        return self.total_ns if self.watched_ns is None else self.watched_ns


def rank_times(report: Report) -> list[RankTime]:
    """Return each rank's mean step, by rank; empty if no step finished."""
    steps = report.tables["steps"]
    surveyed = _means(in_steps(steps, surveyed_steps(steps)))
    divided = _means(steps.filter(pc.is_valid(steps.column("parts_error_ns"))))
    watched = _means(in_steps(steps, watched_steps(steps)))
    exposures = _means(told_rows(report))
    bounded = in_steps(exposure_doubted(report.tables), watched_steps(steps))
    doubted = set(
        bounded.filter(pc.greater(bounded.column("exposed_comm_ns"), literal(0))).column("rank").to_pylist()
    )
    times = []
    for rank in sorted({*surveyed, *watched}):
        whole, light, telling = surveyed.get(rank), watched.get(rank), exposures.get(rank)
        split = divided.get(rank)
        row = split or whole or telling or watched[rank]
        left_out_ns = 0.0 if row is whole else row["capture_ns_mean"]
        row |= {
            "duration_ns_mean": row["duration_ns_mean"] - left_out_ns,
            "unattributed_ns_mean": max(0.0, row["unattributed_ns_mean"] - left_out_ns),
            "capture_ns_mean": row["capture_ns_mean"] - left_out_ns,
        }
        named = (
            [name for name, _ in PARTS] if split or whole else WATCHED_PARTS if telling else WATCHED_PARTS[1:]
        )
        times.append(
            RankTime(
                ranks=(rank,),
                steps=row["count_all"],
                total_ns=row["duration_ns_mean"],
                parts_ns=tuple(row[f"{name}_mean"] if name in named else None for name, _ in PARTS),
                waiting_ns=row["exposed_wait_ns_mean"] if whole or telling else None,
                moving_ns=row["exposed_move_ns_mean"] if whole or telling else None,
                unsplit_ns=row["exposed_unsplit_ns_mean"] if whole or telling else None,
                capture_ns=row["capture_ns_mean"],
                left_out_ns=left_out_ns,
                watched_ns=None if light is None else light["duration_ns_mean"] - light["capture_ns_mean"],
                watched_comm_ns=None if telling is None else telling["exposed_comm_ns_mean"],
                comm_at_least=rank in doubted,
                error_ns=None if split is None else split["parts_error_ns_mean"],
                surveyed_ns=None if whole is None else whole["duration_ns_mean"],
            )
        )
    return times


def told_rows(report: Report) -> pa.Table:
    """Return the rows of the watched steps whose exposed communication is known."""
    return in_steps(exposure_told(report.tables), watched_steps(report.tables["steps"]))


def _means(steps: pa.Table) -> dict[int, dict[str, Any]]:
    """Return rank -> the means of its rows of the steps' table, and how many there are."""
    waits = ("exposed_wait_ns", "exposed_move_ns", "exposed_unsplit_ns")
    wanted = ["duration_ns", *(name for name, _ in PARTS), *waits, "capture_ns", "parts_error_ns"]
    return means_by_rank(steps, wanted)


def slowest(times: Sequence[RankTime]) -> RankTime | None:
    """Return the rank whose mean step is longest, the first of equals; None without any."""
    return max(times, key=lambda time: time.step_ns, default=None)


def longest(times: Sequence[RankTime]) -> RankTime | None:
    """Return the rank whose shown step is longest. `slowest` goes by watched steps, if there are any."""
    return max(times, key=lambda time: time.total_ns, default=None)


def marks(times: Sequence[RankTime]) -> dict[tuple[int, ...], str]:
    """Return ranks -> the word to stand by their name: which are slowest by the times that are shown."""
    whole, light = longest(times), slowest(times)
    if whole is None or light is None:
        return {}
    if whole is light or not mixed(times):
        return {whole.ranks: "slowest"}
    return {whole.ranks: "slowest surveyed", light.ranks: "slowest watched"}


def mixed(times: Sequence[RankTime]) -> bool:
    """Return whether watched steps stand next to the parts of surveyed ones."""
    whole = any(None not in time.parts_ns and not time.divided for time in times)
    return whole and any(time.watched_ns is not None for time in times)


def fold(
    times: Sequence[RankTime], most: int, *, shown: bool = False, first: Collection[int] = ()
) -> tuple[list[RankTime], RankTime | None]:
    """Return at most `most` ranks, the slowest, by rank; and the mean of all the others.

    The second is None if every rank is shown. `shown`: slowest by `total_ns`, if only that is shown. `first`
    are ranks that are kept before others, whatever their time.
    """
    if len(times) <= most:
        return list(times), None
    by_cost = sorted(
        times, key=lambda time: (time.ranks[0] not in first, -(time.total_ns if shown else time.step_ns))
    )
    kept, rest = by_cost[: most - 1], by_cost[most - 1 :]
    mean = RankTime(
        ranks=tuple(sorted(rank for time in rest for rank in time.ranks)),
        steps=max(time.steps for time in rest),
        total_ns=sum(time.total_ns for time in rest) / len(rest),
        parts_ns=tuple(_mean(parts) for parts in zip(*(time.parts_ns for time in rest), strict=True)),
        waiting_ns=_mean([time.waiting_ns for time in rest]),
        moving_ns=_mean([time.moving_ns for time in rest]),
        unsplit_ns=_mean([time.unsplit_ns for time in rest]),
        capture_ns=sum(time.capture_ns for time in rest) / len(rest),
        left_out_ns=sum(time.left_out_ns for time in rest) / len(rest),
        watched_ns=_mean([time.watched_ns for time in rest]),
        watched_comm_ns=_mean([time.watched_comm_ns for time in rest]),
        comm_at_least=any(time.comm_at_least for time in rest),
        error_ns=_mean([time.error_ns for time in rest]),
        surveyed_ns=_mean([time.surveyed_ns for time in rest]),
    )
    return sorted(kept, key=lambda time: time.ranks), mean


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if one of the values is unknown."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if len(present) == len(values) else None
