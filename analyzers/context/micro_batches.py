"""Forward and backward passes of each rank, as its operators show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardtoll.analyzers.shared.tally import Codes

if TYPE_CHECKING:
    from shardtoll.analyzers.context.context import Context

BACKWARD = ("backward", "recompute")


def passes_begun(context: Context, frame: pd.DataFrame, *, backward: bool) -> Codes:
    """Return for each collective how many backward (or forward) passes its rank had begun by then.

    `at` is when it was issued. A pass begins with an operator of its kind that follows one of the other; only
    surveyed steps tell. Collectives that a pass issues before its first operator count to the pass before.
    """
    rank, start = beginnings(context.computes_in_steps, backward=backward)
    begun = np.zeros(len(frame), dtype=np.int64)
    issued_at = frame["at"].to_numpy(dtype=np.int64, na_value=0)
    for number, places in frame.groupby("rank").indices.items():
        begun[places] = np.searchsorted(start[rank == number], issued_at[places], "right")
    return begun


def beginnings(computes: pd.DataFrame, *, backward: bool) -> tuple[Codes, Codes]:
    """Return rank and start of the operators that begin a backward (or forward) pass, by rank and time."""
    computes = computes.sort_values(["rank", "start_ns"], kind="stable")
    inside = computes["phase"].isin((*BACKWARD, "forward")).to_numpy(dtype=bool)
    rank = computes["rank"].to_numpy(dtype=np.int64)[inside]
    start = computes["start_ns"].to_numpy(dtype=np.int64)[inside]
    wanted = (computes["phase"].isin(BACKWARD).to_numpy(dtype=bool) == backward)[inside]
    begins = wanted.copy()
    begins[1:] &= ~wanted[:-1] | (rank[1:] != rank[:-1])
    return rank[begins], start[begins]
