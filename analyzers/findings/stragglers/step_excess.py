"""Excess work or lost time in the steps of a late rank over those of the ranks that wait.

Lead-ups alone mislead if collectives follow each other behind compute. While ranks wait in the first one for
a rank that is late, they compute what leads up to the second. The late rank then seems to compute longer
before the second, whatever made it late before the first. Whole steps are free of that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep

PARTS: Final = ("compute_ns", "copy_ns", "data_ns", "sync_ns", "host_ns", "between_ns")

EXPLAINS: Final = 0.5
"""Part of the waiting that the longest part must account for, or else whole steps do not tell the cause."""


def step_excess(context: Context, late: pd.DataFrame) -> dict[str, float]:
    """Return for each of `PARTS` the excess of the late ranks' steps over the median of the others.

    Mean per step in ns. `late` as `lateness.waits` gives it, with the rows of one late rank. Empty if no part
    is so much longer that it explains half of the waiting.
    """
    # Compute and idle time of a watched step are not on record, traced or not.
    judged = [step for step in told_steps(context) if step in set(context.surveyed)]
    late = keep(late, late["step"].isin(judged))
    if late.empty:
        return {}
    pairs = late[["step", "late_rank", "rank"]].drop_duplicates()
    joined = pairs.merge(totals(context), on=["rank", "step"], how="inner")
    is_late = (joined["rank"] == joined["late_rank"]).to_numpy(dtype=bool)
    parts = list(PARTS)
    others = joined[~is_late].groupby(["step", "late_rank"])[parts].median()
    of_late = keep(joined, is_late).set_index(["step", "late_rank"])[parts]
    more = (of_late - others).dropna()
    excesses = {name: float(more[name].sum()) / len(judged) for name in PARTS}
    waited = float(late.groupby("rank")["waited_ns"].sum().max()) / len(judged)
    return excesses if max(excesses.values()) >= EXPLAINS * waited else {}


def told_steps(context: Context) -> tuple[int, ...]:
    """Return the steps whose lost time is known by reason.

    In an audit those it traced, if it traced any; else the surveyed ones.
    """
    leadups = context.leadups
    traced = {int(step) for step in leadups["step"].dropna()} if context.ledger.run.source == "live" else ()
    return tuple(step for step in context.steps if step in traced) or context.surveyed or context.steps


def totals(context: Context) -> pd.DataFrame:
    """Return compute, copies, the kinds of idle time of each rank and step, and the time before it.

    Fetching before its step makes a rank late just as fetching inside the step does.
    """
    steps = context.surveyed_rows
    table: pd.DataFrame = steps[["rank", "step", "compute_ns", "idle_ns"]].assign(
        copy_ns=steps["exposed_copy_ns"]
    )
    stalls = context.stalls_in_steps
    for name, kind in (("data_ns", "data"), ("sync_ns", "host-sync")):
        lost = keep(stalls, stalls["kind"] == kind).groupby(["rank", "step"])["lost_ns"].sum().rename(name)
        table = table.merge(lost.reset_index(), on=["rank", "step"], how="left")
        table[name] = table[name].fillna(0).astype(np.int64)
    table["host_ns"] = table["idle_ns"] - table["data_ns"] - table["sync_ns"]
    for name, kind in (("fetched_ns", "data"), ("between_ns", "host")):
        before = keep(stalls, stalls["kind"] == kind).groupby(["rank", "step"])["before_ns"].sum()
        table = table.merge(before.rename(name).reset_index(), on=["rank", "step"], how="left")
        table[name] = table[name].fillna(0).astype(np.int64)
    table["data_ns"] += table["fetched_ns"]
    return table
