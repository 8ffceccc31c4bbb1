"""How long each rank waited in a step, and how long others waited for it: what the report's steps carry."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.stragglers.lateness import waits
from shardtoll.analyzers.shared.tally import Codes, changes

COLUMNS: Final = (
    "exposed_wait_ns",
    "exposed_move_ns",
    "exposed_unsplit_ns",
    "waited_for_ns",
    "compute_beyond_ns",
)
"""Columns of the steps' table that are known only after matching the ranks."""

_PLACE: Final = ("step", "rank")


def step_waits(context: Context) -> pd.DataFrame:
    """Return `COLUMNS` for each row of the steps' table, in its order."""
    places = _Places(context.step_rows)
    waited_for, is_known = _waited_for(context, places)
    columns = {
        **_exposed(context, places),
        "waited_for_ns": pd.arrays.IntegerArray(waited_for, ~is_known),
        "compute_beyond_ns": _beyond(context),
    }
    made: pd.DataFrame = pd.DataFrame({name: columns[name] for name in COLUMNS}, copy=False)
    return made


class _Places:
    """Finds the row of the steps' table that is of a step and rank: one number stands for the two."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.count = len(rows)
        self._ranks = int(rows["rank"].max()) + 1 if len(rows) else 1
        keys = self._keys(rows["step"].to_numpy(dtype=np.int64), rows["rank"].to_numpy(dtype=np.int64))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def of(self, step: Codes, rank: Codes) -> tuple[Codes, npt.NDArray[np.bool_]]:
        """Return the place of each pair, and which pairs have one."""
        keys = self._keys(step, rank)
        near = np.minimum(np.searchsorted(self._sorted, keys), max(0, self.count - 1))
        if not self.count:
            return near, np.zeros(len(keys), dtype=np.bool_)
        return self._order[near], (self._sorted[near] == keys) & (rank < self._ranks)

    def _keys(self, step: Codes, rank: Codes) -> Codes:
        keys: Codes = step * self._ranks + rank
        return keys


def _exposed(context: Context, places: _Places) -> dict[str, pd.arrays.IntegerArray]:
    """Return each step's exposed communication: waiting, moving, and the rest, whose wait is unknown."""
    frame = context.in_steps
    is_known = (frame["exposed_ns"].notna() & frame["waited_ns"].notna()).to_numpy(dtype=bool)
    step, rank, exposed, waited = (
        frame[name].to_numpy(dtype=np.int64, na_value=0)[is_known]
        for name in (*_PLACE, "exposed_ns", "waited_ns")
    )
    place, has_row = places.of(step, rank)
    sums = np.zeros((2, places.count), dtype=np.int64)
    for row, values in enumerate((waited, exposed - waited)):
        np.add.at(sums[row], place[has_row], values[has_row])
    parts = sums.astype(np.float64)
    # Shares of collectives that overlap may add up to more than the step was exposed.
    most = context.step_rows["exposed_comm_ns"].to_numpy(dtype=np.float64, na_value=0.0)
    total = parts.sum(axis=0)
    scale = np.minimum(1.0, np.divide(most, total, out=np.ones(len(total)), where=total > 0))
    wait, move = np.floor(parts * scale).astype(np.int64)
    names = ("exposed_wait_ns", "exposed_move_ns", "exposed_unsplit_ns")
    none_unknown = np.zeros(places.count, dtype=np.bool_)
    each = (wait, move, most.astype(np.int64) - wait - move)
    return {
        name: pd.arrays.IntegerArray(values, none_unknown) for name, values in zip(names, each, strict=True)
    }


def _waited_for(context: Context, places: _Places) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Return how long the rank that waits longest in a step waits for each rank, and where that is known:
    of ranks that are matched there."""
    rows = waits(context)
    step, rank, late_rank, late, waited = (
        rows[name].to_numpy(dtype=np.int64) for name in (*_PLACE, "late_rank", "late_ns", "waited_ns")
    )
    longest, is_known = np.zeros(places.count, dtype=np.int64), np.zeros(places.count, dtype=np.bool_)
    place, has_row = places.of(step, rank)
    is_known[place[has_row]] = True
    is_late = np.flatnonzero((late >= LEAST_LATE_NS) & (late_rank != rank))
    if not len(is_late):
        return longest, is_known
    order = is_late[np.lexsort((rank[is_late], late_rank[is_late], step[is_late]))]
    starts = np.flatnonzero(changes(step[order], late_rank[order], rank[order]))
    sums = np.add.reduceat(waited[order], starts)
    step, late_rank = step[order][starts], late_rank[order][starts]
    firsts = np.flatnonzero(changes(step, late_rank))
    place, has_row = places.of(step[firsts], late_rank[firsts])
    longest[place[has_row]] = np.maximum.reduceat(sums, firsts)[has_row]
    is_known[place[has_row]] = True
    return longest, is_known


def _beyond(context: Context) -> pd.arrays.IntegerArray:
    """Return what each rank computes in the surveyed steps beyond the median rank."""
    rows = context.step_rows
    step = rows["step"].to_numpy(dtype=np.int64)
    is_surveyed = np.isin(step, context.surveyed)
    compute = rows["compute_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    beyond = np.full(len(rows), np.nan)
    if (compute[is_surveyed] > 0).any():
        of_surveyed = pd.Series(compute[is_surveyed])
        middle = of_surveyed.groupby(step[is_surveyed]).transform("median")
        beyond[is_surveyed] = np.maximum(of_surveyed - middle, 0.0)
    unknown = np.isnan(beyond)
    return pd.arrays.IntegerArray(np.where(unknown, 0.0, beyond).round().astype(np.int64), unknown)
