"""Who came last to each collective, how long the others waited, and what the last one did meanwhile."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.clocks import SYNCHRONISING
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.tally import keep

LEAST_LATE_NS: Final = 10_000
"""A rank that comes less than this after the one before it is not late: somebody is always last."""

CAUSES: Final = ("began_ns", "compute_ns", "comm_ns", "copy_ns", "data_ns", "sync_ns", "host_ns")


def waits(context: Context) -> pd.DataFrame:
    """Return the rows of collectives in steps in which all waited for the last rank.

    New columns: late_rank, late_ns (after the rank before it) and waited_ns, the exposed part of the
    wait: what is exposed beyond the transfer, as `exposed-communication` counts it.
    """
    frame = context.in_steps
    fit = frame["wait_ns"].notna() & frame["match_id"].notna() & frame["op"].isin(SYNCHRONISING)
    frame = keep(frame, fit & frame["exposed_ns"].notna())
    if frame.empty:
        none: pd.DataFrame = frame.assign(late_rank=0, late_ns=0, waited_ns=0)
        return none
    match = frame["match_id"].to_numpy(dtype=np.int64)
    arrival = frame["arrival_ns"].to_numpy(dtype=np.int64)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    order = np.lexsort((arrival, match))
    last_of = np.flatnonzero(np.append(np.diff(match[order]) != 0, True))
    last = order[last_of]
    before = order[np.maximum(last_of - 1, 0)]
    late = np.where(match[before] == match[last], arrival[last] - arrival[before], 0)
    place = np.searchsorted(match[last], match)
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64)
    transfer = frame["transfer_ns"].to_numpy(dtype=np.int64)
    waited: pd.DataFrame = frame.assign(
        late_rank=rank[last][place],
        late_ns=late[place],
        waited_ns=np.maximum(exposed - transfer, 0),
    )
    return waited


def late_to(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row a collective: step, op, late_rank, late_ns, and the longest waited_ns."""
    once: pd.DataFrame = (
        rows.groupby("match_id")
        .agg(
            step=("step", "first"),
            op=("op", "first"),
            late_rank=("late_rank", "first"),
            late_ns=("late_ns", "first"),
            waited_ns=("waited_ns", "max"),
        )
        .reset_index()
    )
    return once


def excess(context: Context, rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each collective of `rows` by how much the late rank's lead-up was longer, part by part.

    One row a collective with the columns of `CAUSES`, each the late rank's part less the median of the
    others' (began_ns: when the lead-up began, which differs where the step itself began late), and phase,
    module, op and op_ns of the late rank's lead-up. Empty where no lead-ups are on record.
    """
    leadups = context.leadups
    if leadups.empty or rows.empty:
        return keep(rows, np.zeros(len(rows), dtype=bool))
    place = context.collectives.groupby("rank").cumcount()
    keyed = rows[["rank", "match_id", "late_rank", "late_ns"]].assign(index=place.loc[rows.index])
    began = context.clocks.corrected(
        leadups["rank"].to_numpy(dtype=np.int64), leadups["since_ns"].to_numpy(dtype=np.int64)
    )
    told = leadups.assign(began_ns=began)[["rank", "index", *CAUSES, "phase", "module", "op", "op_ns"]]
    joined = keyed.merge(told, on=["rank", "index"], how="inner")
    is_late = (joined["rank"] == joined["late_rank"]).to_numpy(dtype=bool)
    causes = list(CAUSES)
    joined["began_ns"] -= joined["began_ns"].min()  # medians are floats: keep the numbers small
    joined[causes] = joined[causes].astype("float64")
    others = joined[~is_late].groupby("match_id")[causes].median()
    late = keep(joined, is_late).set_index("match_id")
    late = keep(late, late.index.isin(others.index))
    longer: pd.DataFrame = late.assign(**(late[causes] - others.loc[late.index]))
    return longer
