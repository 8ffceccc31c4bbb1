"""How long activation checkpointing's second forward takes in live runs, which time few of its operators."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep, numbered

Floats = npt.NDArray[np.float64]

_RUN: Final = ("step", "rank")
_WORK: Final = (*_RUN, "op", "module")
"""Columns in which an operator of the second forward agrees with its counterpart in the first."""


def second_forward_ns(context: Context) -> dict[int, float]:
    """Return rank -> ns per surveyed step in the second forward, without its collectives; empty without one.

    Live records hold its matrix products and attention. Each stands for as much as its counterpart in the
    first forward: until the next operator of that forward begins. Exposed collectives and the share of the
    step that capture takes are left out. The last of a forward, and one without a like, stands for itself
    alone.
    """
    rows = context.priced_computes
    rows = keep(rows, rows["duration_ns"].notna() & rows["start_ns"].notna())
    again = (rows["phase"] == "recompute").to_numpy(dtype=bool)
    if not again.any():
        return {}
    order = np.lexsort([rows[name].to_numpy(dtype=np.int64) for name in ("start_ns", "rank", "step")])
    rows, again = rows.iloc[order], again[order]
    own = rows["duration_ns"].to_numpy(dtype=np.float64)
    first = (rows["phase"] == "forward").to_numpy(dtype=bool)
    lasts = np.where(first, np.fmax(own, _until_next(context, rows, first)), own)
    work = numbered(rows, _WORK)
    likes = pd.Series(lasts[first]).groupby(work[first]).mean().reindex(work[again]).to_numpy(np.float64)
    ranks = rows["rank"].to_numpy(dtype=np.int64)[again]
    total = pd.Series(np.fmax(own[again], likes)).groupby(ranks).sum()
    return {int(rank): float(value) / max(1, len(context.surveyed)) for rank, value in total.items()}


def _until_next(context: Context, rows: pd.DataFrame, first: npt.NDArray[np.bool_]) -> Floats:
    """Return for each operator the ns until the next one begins, if both are of one forward; else 0."""
    start = rows["start_ns"].to_numpy(dtype=np.float64)
    run = numbered(rows, _RUN)
    lasts = np.zeros(len(rows))
    goes_on = first[:-1] & first[1:] & (run[:-1] == run[1:])
    lasts[:-1][goes_on] = np.diff(start)[goes_on]
    waits = np.zeros(len(rows))
    for (step, rank), theirs in context.in_surveyed.groupby(list(_RUN), sort=False):
        here = np.flatnonzero(((rows["step"] == step) & (rows["rank"] == rank)).to_numpy(dtype=bool))
        known = keep(theirs, theirs["issue_ns"].notna() & theirs["exposed_ns"].notna())
        at = np.searchsorted(start[here], known["issue_ns"].to_numpy(dtype=np.float64), side="right") - 1
        there = at >= 0
        np.add.at(waits, here[at[there]], known["exposed_ns"].to_numpy(dtype=np.float64)[there])
    taken = context.surveyed_rows
    capture = (taken["capture_ns"].fillna(0) / taken["duration_ns"].replace(0, np.nan)).astype("float64")
    share = capture.fillna(0).groupby(taken["rank"]).mean().clip(0, 1)
    kept = 1 - rows["rank"].map(share).fillna(0).to_numpy(dtype=np.float64)
    shortened: Floats = np.maximum(lasts - waits, 0) * kept
    return shortened
