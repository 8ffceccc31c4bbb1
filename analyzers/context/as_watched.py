"""Prices what only surveyed steps know at the times of watched steps.

Operators and fingerprints are on record in surveyed steps only. Their times hold waiting for the recording of
other ranks, and operators slowed by it. A finding made of them is billed as in the watched steps like them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.divided import BY_HOST
from shardtoll.analyzers.shared.tally import keep, numbered, with_columns
from shardtoll.ledger import Ledger

PLACE: Final = (
    *("rank", "group", "op", "dtype", "message_bytes", "phase"),
    *("caused_by_op", "module", "parameter", "source"),
)
"""Columns in which two steps' collectives agree if they are one call of the program; order separates equal
ones."""

MOST_ROWS: Final = 1 << 18
"""Collectives of watched steps that are looked at: of all of them up to so many, else of the last steps."""

MOST_FACTOR: Final = 2.0
"""Bound on how much longer or shorter compute of a watched step may be than that of a surveyed one."""


def exposed_as_watched(
    collectives: pd.DataFrame, surveyed: Sequence[int], watched: Sequence[int]
) -> pd.DataFrame:
    """Return the collectives of surveyed steps; exposed times are means of the same calls in watched steps.

    So tolls are parts of the bars, which show watched steps. A call that these do not have keeps its time.
    """
    mine = keep(collectives, collectives["step"].isin(surveyed))
    of_watched = (
        collectives["step"].isin(_looked_at(collectives, watched)) & collectives["exposed_ns"].notna()
    )
    frame = keep(collectives, of_watched | collectives.index.isin(mine.index))
    if mine.empty or len(frame) == len(mine):
        return mine
    called = numbered(frame, PLACE)
    nth = pd.Series(called).groupby([called, frame["step"].to_numpy()]).cumcount()
    place = numbered(pd.DataFrame({"called": called, "nth": nth}), ("called", "nth"))
    is_mine = frame["step"].isin(surveyed).to_numpy(dtype=bool)
    exposed = frame["exposed_ns"].astype("float64").to_numpy(dtype=np.float64, na_value=np.nan)
    means = pd.Series(exposed[~is_mine]).groupby(place[~is_mine]).mean()
    as_watched = means.reindex(place[is_mine]).to_numpy(dtype=np.float64)
    # An unknown time stays unknown.
    own = exposed[is_mine]
    times = np.where(np.isnan(own) | np.isnan(as_watched), own, as_watched)
    whole = pd.arrays.IntegerArray(np.rint(np.nan_to_num(times)).astype(np.int64), np.isnan(times))
    priced: pd.DataFrame = with_columns(mine, exposed_ns=whole)
    return priced


def _looked_at(collectives: pd.DataFrame, watched: Sequence[int]) -> list[int]:
    """Return the watched steps that are looked at, see `MOST_ROWS`; the last one in any case."""
    counts = collectives["step"].value_counts().reindex(sorted(watched, reverse=True), fill_value=0)
    fitting = int((counts.cumsum() <= MOST_ROWS).sum())
    return [int(step) for step in counts.index[: max(1, fitting)]]


def computes_as_watched(
    computes: pd.DataFrame, step_rows: pd.DataFrame, parts_rows: pd.DataFrame, surveyed: Sequence[int]
) -> pd.DataFrame:
    """Return the operators with the durations that they have in a mean watched step of their rank."""
    watched = parts_rows.loc[parts_rows["parts_error_ns"].notna()]
    if watched.empty or computes.empty:
        return computes
    rows = keep(step_rows, step_rows["step"].isin(surveyed))
    slowed = (rows["compute_ns"] + rows["slowed_compute_ns"].fillna(0)).astype("float64")
    took = slowed.groupby(rows["rank"]).mean()
    factor = watched["compute_ns"].astype("float64").groupby(watched["rank"]).mean() / took.replace(0, np.nan)
    factor = factor.clip(1 / MOST_FACTOR, MOST_FACTOR).fillna(1.0)
    of_each = computes["rank"].map(factor).fillna(1.0).astype("float64")
    durations = (computes["duration_ns"].astype("Float64") * of_each).round().astype("Int64")
    priced: pd.DataFrame = with_columns(computes, duration_ns=durations)
    return priced


def surveyed_on_device(ledger: Ledger) -> bool:
    """Whether surveyed steps are those of an accelerator: a survey slows their host, and no kernel."""
    return ledger.run.source == "live" and ledger.run.device not in (None, "cpu")


def stalls_as_watched(ledger: Ledger, stalls: pd.DataFrame, step_rows: pd.DataFrame) -> pd.DataFrame:
    """Return the lost time without what surveys added to it: see `divided`, whose rows `step_rows` are.

    Only time attributed to the host shrinks, all by the same factor: as much as the idle time of its step
    did.
    """
    if stalls.empty or not surveyed_on_device(ledger):
        return stalls
    rows = keep(step_rows, step_rows["level"] == "survey")
    cost = pd.Series(
        rows["capture_ns"].astype("float64").to_numpy(),
        pd.MultiIndex.from_frame(rows[["step", "rank"]].astype("int64")),
        dtype="float64",
    )
    slowed = stalls["kind"].isin(BY_HOST).to_numpy(dtype=bool) & stalls["step"].notna().to_numpy(dtype=bool)
    places = pd.MultiIndex.from_frame(stalls.loc[slowed, ["step", "rank"]].astype("int64"))
    lost = stalls["lost_ns"].astype("float64").to_numpy(copy=True)
    whole = pd.Series(lost[slowed]).groupby(places).transform("sum").to_numpy()
    taken = cost.reindex(places).fillna(0).to_numpy()
    lost[slowed] *= np.maximum(0.0, 1 - np.divide(taken, whole, out=np.zeros(len(whole)), where=whole > 0))
    priced: pd.DataFrame = with_columns(
        stalls, lost_ns=pd.array(np.rint(lost).astype(np.int64), dtype="Int64")
    )
    return priced
