"""How long each rank waited in a step, and how long others waited for it: what the report's steps carry."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.stragglers.lateness import waits
from shardtoll.analyzers.shared.tally import keep

COLUMNS: Final = (
    "exposed_wait_ns",
    "exposed_move_ns",
    "exposed_unsplit_ns",
    "waited_for_ns",
    "compute_beyond_ns",
)
"""Columns of the steps' table that are known only after matching the ranks."""

_PLACE: Final = ["step", "rank"]


def step_waits(context: Context) -> pd.DataFrame:
    """Return `COLUMNS` for each row of the steps' table, in its order."""
    rows = context.step_rows[[*_PLACE, "exposed_comm_ns"]]
    parts = (_exposed(context, rows), _waited_for(context), _beyond(context))
    for part in parts:
        rows = rows.merge(part, on=_PLACE, how="left")
    columns: pd.DataFrame = rows[list(COLUMNS)].astype("Int64")
    return columns


def _exposed(context: Context, steps: pd.DataFrame) -> pd.DataFrame:
    """Return each step's exposed communication: waiting, moving, and the rest, whose wait is unknown."""
    frame = context.in_steps[[*_PLACE, "exposed_ns", "waited_ns"]].dropna()
    frame = frame.assign(exposed_move_ns=frame["exposed_ns"] - frame["waited_ns"])
    sums = frame.groupby(_PLACE)[["waited_ns", "exposed_move_ns"]].sum().reset_index()
    sums = steps.merge(sums.rename(columns={"waited_ns": "exposed_wait_ns"}), on=_PLACE, how="left").fillna(0)
    names = ["exposed_wait_ns", "exposed_move_ns"]
    parts = sums[names].to_numpy(dtype=np.float64)
    # Shares of collectives that overlap may add up to more than the step was exposed.
    most = sums["exposed_comm_ns"].to_numpy(dtype=np.float64)
    total = parts.sum(axis=1)
    scale = np.minimum(1.0, np.divide(most, total, out=np.ones(len(total)), where=total > 0))
    sums[names] = np.floor(parts * scale[:, None]).astype(np.int64)
    sums["exposed_unsplit_ns"] = most.astype(np.int64) - sums[names].sum(axis=1)
    split: pd.DataFrame = sums[[*_PLACE, *names, "exposed_unsplit_ns"]]
    return split


def _waited_for(context: Context) -> pd.DataFrame:
    """Return how long the rank that waits longest in a step waits for each rank that is matched there."""
    rows = waits(context)[[*_PLACE, "late_rank", "late_ns", "waited_ns"]].astype("int64")
    there = rows[_PLACE].drop_duplicates()
    late = keep(rows, (rows["late_ns"] >= LEAST_LATE_NS) & (rows["late_rank"] != rows["rank"]))
    each = late.groupby(["step", "late_rank", "rank"])["waited_ns"].sum()
    most = each.groupby(level=["step", "late_rank"]).max().rename("waited_for_ns").rename_axis(_PLACE)
    waits_for = there.merge(most.reset_index(), on=_PLACE, how="outer").fillna(0)
    waited_for: pd.DataFrame = waits_for.astype("Int64")
    return waited_for


def _beyond(context: Context) -> pd.DataFrame:
    """Return what each rank computes in the surveyed steps beyond the median rank."""
    rows = context.surveyed_rows[[*_PLACE, "compute_ns"]]
    if not rows["compute_ns"].any():
        rows = rows.iloc[:0]
    middle: pd.Series[Any] = rows.groupby("step")["compute_ns"].transform("median")
    beyond = (rows["compute_ns"] - middle).clip(lower=0).round()
    longer: pd.DataFrame = rows[_PLACE].assign(compute_beyond_ns=beyond.astype("Int64"))
    return longer
