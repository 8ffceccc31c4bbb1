"""For how long the other ranks waited for each rank in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardtoll.dashboards.matched import LEAST_LATE_NS, matched
from shardtoll.ledger import Report
from shardtoll.ledger.levels import surveyed_steps

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """A number for each rank (row) and step (column); NaN inside is unknown and never leaves a renderer."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    ns: Floats
    waits: bool
    """Whether the numbers are waiting for the rank; else what it computes beyond the median rank."""


def waited_for(report: Report) -> Grid | None:
    """Return for each rank and step the exposed waiting for it, on the rank that waits most in that step.

    Of every matched collective to which one rank came last, 10 us or more after the one before it, the
    others' exposed waiting (what is exposed beyond the transfer, as the straggler analysis counts it) goes to
    that rank. A rank that took part in collectives and was never waited for has 0; one without a matched
    collective in the step is unknown. None where nothing is matched.
    """
    frame = matched(report)
    frame = frame[frame["step"].notna() & frame["exposed_ns"].notna()]
    # A row left out leaves the others of its collective without their last.
    frame = frame[frame.groupby("collective")["rank"].transform("size") == frame["group_size"]]
    if frame.empty:
        return None
    late = _late_rank(frame)
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64)
    waited = np.maximum(exposed - frame["transfer_ns"].to_numpy(dtype=np.int64), 0)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    counts = (late >= 0) & (late != rank)
    rows = frame[["step", "rank"]].assign(late=late, waited=waited)
    by_waiter = rows[counts].groupby(["late", "step", "rank"])["waited"].sum()
    most = by_waiter.groupby(level=["late", "step"]).max()
    ranks = tuple(sorted(report.run.ranks_seen))
    steps = tuple(sorted({int(step) for step in report.tables["steps"].column("step").unique().to_pylist()}))
    steps = steps or tuple(sorted({int(step) for step in frame["step"].unique()}))
    row, column = {rank: at for at, rank in enumerate(ranks)}, {step: at for at, step in enumerate(steps)}
    ns = np.full((len(ranks), len(steps)), np.nan)
    took_part = rows[["rank", "step"]].drop_duplicates()
    for who, step in took_part.itertuples(index=False):
        if int(step) in column and int(who) in row:
            ns[row[int(who)], column[int(step)]] = 0
    for (who, step), value in most.items():
        if int(step) in column and int(who) in row:
            ns[row[int(who)], column[int(step)]] = float(value)
    return Grid(ranks, steps, ns, waits=True)


def _late_rank(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return for each row the rank that came last to its collective; -1 where none was late."""
    number = frame["collective"].to_numpy(dtype=np.int64)
    waits = frame["wait_ns"].to_numpy(dtype=np.int64)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    order = np.lexsort((waits, number))
    first = np.flatnonzero(np.append(True, np.diff(number[order]) != 0))
    # Each has two ranks or more, so the second least wait is the next one.
    late = waits[order[first + 1]] - waits[order[first]]
    last = np.where(late >= LEAST_LATE_NS, rank[order[first]], -1)
    found: npt.NDArray[np.int64] = last[np.searchsorted(number[order[first]], number)]
    return found


def computed_beyond(report: Report) -> Grid | None:
    """Return for each rank and surveyed step the compute beyond the median rank's; None without any.

    For jobs that have no matched collectives: those tell less of who is late.
    """
    steps = surveyed_steps(report.tables["steps"])
    frame = report.steps
    frame = frame[frame["step"].isin(steps)]
    ranks = tuple(sorted(int(rank) for rank in frame["rank"].unique()))
    if len(ranks) < 2:
        return None
    wide = frame.astype({"compute_ns": "float64"}).pivot_table(
        index="rank", columns="step", values="compute_ns", aggfunc="first"
    )
    numbers = wide.to_numpy(dtype=np.float64)
    if not (numbers > 0).any():
        return None
    beyond = np.maximum(numbers - np.nanmedian(numbers, axis=0), 0)
    return Grid(
        tuple(int(rank) for rank in wide.index),
        tuple(int(step) for step in wide.columns),
        beyond,
        waits=False,
    )
