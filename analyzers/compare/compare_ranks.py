"""Which rank changed by itself: a straggler that came, or went.

All ranks leave a collective together, so one slow rank makes every rank's step longer. The time outside
collectives separates them: the slow rank's grows, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.compare.causes import signed
from shardtoll.analyzers.shared.tally import keep
from shardtoll.analyzers.two_runs.judges import Judge, Rows
from shardtoll.ledger import Report
from shardtoll.ledger.answers.comparison import Change
from shardtoll.ledger.records.levels import exposure_doubted, in_steps
from shardtoll.ledger.tables.tables import to_frame

BESIDE: Final = 2
"""A rank stands out if it changed by more than so many times what the middle one of the others did."""
MOST: Final = 256
"""Ranks that are judged: of larger jobs those that changed most."""

FEW: Final = 16
"""Ranks from which one hardly moves the middle of all, so that it may be among them."""
OUTSIDE: Final = " outside collectives"

Array = npt.NDArray[np.float64]


def rank_series(report: Report, numbers: tuple[int, ...]) -> dict[int, Array]:
    """Return rank -> (steps,) ns of its step outside collectives, of ranks that tell it in all of them."""
    frame = to_frame(in_steps(report.tables["steps"], numbers))
    unknown = to_frame(in_steps(exposure_doubted(report.tables), numbers))["rank"].unique()
    frame = keep(frame, ~frame["rank"].isin(unknown))
    frame = frame.assign(outside=frame["duration_ns"] - frame["capture_ns"] - frame["exposed_comm_ns"])
    table = frame.pivot_table(index="step", columns="rank", values="outside", aggfunc="mean")
    table = table.dropna(axis="columns")
    return {int(rank): table[rank].to_numpy(dtype=np.float64) for rank in table.columns}


def rank_judges(
    rows: Rows,
    before: Mapping[int, Array],
    after: Mapping[int, Array],
    floor: Callable[[Array, Array], float],
) -> list[Judge]:
    """Add a row for each rank and return what judges those that changed by more than the others.

    A rank is judged against the middle one of the others, step by step. This takes out what all of them have
    in common. `floor`: what differs of a time from run to run, in ns.
    """
    ranks = sorted(before.keys() & after.keys())
    if len(ranks) < 2 or not rows.enough:
        return []
    sides = [np.array([side[rank] for rank in ranks]) for side in (before, after)]
    changes = sides[1].mean(axis=1) - sides[0].mean(axis=1)
    middle = [np.median(side, axis=0) for side in sides]
    judges = []
    for row in np.argsort(-np.abs(changes - np.median(changes)), kind="stable")[:MOST].tolist():
        others = np.delete(np.arange(len(ranks)), row)
        if len(ranks) <= FEW:
            middle = [np.median(side[others], axis=0) for side in sides]
        was, now = (side[row] for side in sides)
        name = f"rank {ranks[row]}{OUTSIDE}"
        judge = rows.timed(name, was - middle[0], now - middle[1], floor(was, now))
        if abs(changes[row]) > BESIDE * abs(float(np.median(changes[others]))):
            judges.append(_own(judge, float(was.mean()), float(now.mean())))
    return judges


def _own(judge: Judge, was: float, now: float) -> Judge:
    """Return what judges against the others and tells the rank's own times."""

    def told() -> Change:
        change = judge()
        off = now - was - (change.difference or 0.0)
        low = None if change.low is None else change.low + off
        high = None if change.high is None else change.high + off
        return replace(change, before=was, after=now, low=low, high=high)

    return told


def rank_words(change: Change) -> str:
    """Return `rank 3 alone takes +20 ms per step outside collectives`."""
    rank = change.name.removesuffix(OUTSIDE)
    return f"{rank} alone takes {signed(change.difference)} per step outside collectives"
