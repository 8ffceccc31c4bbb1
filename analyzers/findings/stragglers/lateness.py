"""Who came last to each collective, how long the others waited, and what the last one did meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.fill import CLOCK_SLACK_NS
from shardtoll.analyzers.context.peers import ROOTED, SYNCHRONISING
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, with_columns

COLUMNS: Final = (
    *("step", "rank", "op", "group_id", "match_id", "implicit", "placements_from"),
    *(
        "arrival_ns",
        "last_rank",
        "last_ns",
        "after_ns",
        "duration_ns",
        "exposed_ns",
        "wait_ns",
        "transfer_ns",
        "root_place",
    ),
)

CAUSES: Final = ("began_ns", "compute_ns", "comm_ns", "copy_ns", "data_ns", "sync_ns", "host_ns")


@once
def waits(context: Context) -> pd.DataFrame:
    """Return the rows of collectives in which ranks waited for the last one, with `COLUMNS`.

    Only the steps `alike`, so that none is late for its own capture while others had none.

    New columns: late_rank, late_ns (after the rank before it), behind_ns (after the median of its ranks),
    at_least, and waited_ns. The last is the exposed part of the wait: the time exposed beyond the transfer,
    as `exposed-communication` counts it. `at_least`: a rank of the group was not seen. Then the last one seen
    is meant, and the wait is at least this long. A rooted collective is among them only if its root is known
    and all its ranks were seen. The last one is then the rank that the others need (see `context.rooted`).
    """
    frame = context.in_alike[list(COLUMNS)]
    symmetric = frame["op"].isin(SYNCHRONISING)
    has_wait = frame["wait_ns"].notna() & (symmetric | frame["op"].isin(ROOTED))
    part = symmetric & frame.index.isin(_partly_seen(context))
    fit = frame["exposed_ns"].notna() & frame["last_ns"].notna()
    frame = keep(frame, fit & (has_wait | part))
    match = frame["match_id"].to_numpy(dtype=np.int64)
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64)
    span = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0)
    at_least = frame["wait_ns"].isna().to_numpy(dtype=bool)
    ahead = (frame["last_ns"] - frame["arrival_ns"]).to_numpy(dtype=np.int64)
    transfer = np.where(
        at_least,
        span - np.clip(ahead, 0, span),
        frame["transfer_ns"].to_numpy(dtype=np.int64, na_value=0),
    )
    # Medians are floats, which hold small numbers only: count from the last arrival.
    behind = pd.Series(ahead, dtype=np.int64).groupby(match).transform("median")
    waited: pd.DataFrame = with_columns(
        frame,
        late_rank=frame["last_rank"].to_numpy(dtype=np.int64),
        late_ns=frame["after_ns"].to_numpy(dtype=np.int64),
        behind_ns=behind.to_numpy().round().astype(np.int64),
        waited_ns=np.maximum(exposed - transfer, 0),
        at_least=at_least,
    )
    on_gloo = frame["root_place"].to_numpy(dtype=np.int64) >= 0
    stayed = frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool) | on_gloo | (transfer > 0)
    whole = pd.Series(stayed).groupby(match).transform("all").to_numpy(dtype=bool)
    return keep(waited, whole)


def _partly_seen(context: Context) -> pd.Index[Any]:
    """Return the rows of matched collectives of which several ranks were seen, and not all.

    Those whose ranks' times contradict each other are left out.
    """
    frame = context.collectives
    marks = context.matches.rows
    part = (marks["match_id"].notna() & ~marks["whole"]).to_numpy(dtype=bool)
    timed = (frame["arrival_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    rows = keep(frame, part & frame["wait_ns"].isna().to_numpy(dtype=bool))
    match = rows["match_id"].to_numpy(dtype=np.int64)
    facts = pd.DataFrame(
        {
            "start": rows["arrival_ns"].to_numpy(dtype=np.int64, na_value=0),
            "end": (rows["arrival_ns"] + rows["duration_ns"]).to_numpy(dtype=np.int64, na_value=0),
            "timed": timed[rows.index.to_numpy()],
        }
    )
    of = facts.groupby(match)
    agree = of["start"].transform("max") - of["end"].transform("min") <= CLOCK_SLACK_NS
    fit = agree & of["timed"].transform("all") & (of["start"].transform("size") > 1)
    fitting: pd.Index[Any] = keep(rows, fit.to_numpy(dtype=bool)).index
    return fitting


def late_to(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row a collective: what `waits` tells of it, with the last arrival and the longest wait."""
    of = rows.groupby("match_id")
    # Two of a kind at once: column by column takes four times as long.
    once = of[["step", "op", "group_id"]].first()
    once["arrival_ns"] = of["arrival_ns"].max()
    once[["late_rank", "late_ns", "behind_ns"]] = of[["late_rank", "late_ns", "behind_ns"]].first()
    once["waited_ns"] = of["waited_ns"].max()
    by_collective: pd.DataFrame = once.reset_index()
    return by_collective


def host_computes(context: Context) -> bool:
    """Whether only the host computes: there is no device that could stand idle."""
    return context.on_cpu


def at_the_start(rows: pd.DataFrame, steps: Collection[int]) -> bool:
    """Whether most of the waiting in these steps is in the first collective of its group on record.

    There ranks may only have begun to record at different moments.
    """
    once = late_to(rows).sort_values("arrival_ns", kind="stable")
    once = with_columns(once, waited_ns=once["waited_ns"].where(once["step"].isin(steps), 0))
    first = once.groupby("group_id", dropna=False)["waited_ns"].first().sum()
    return bool(first > once["waited_ns"].sum() / 2)


def excess(context: Context, rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each collective of `rows` by how much the late rank's lead-up was longer, part by part.

    One row a collective with the columns of `CAUSES`, each the late rank's part less the median of the
    others'. Further columns are phase, module, op and op_ns of the late rank's lead-up. `began_ns` is when
    the lead-up began, which differs if the step itself began late. Empty if no lead-ups are on record.
    """
    leadups = context.leadups
    if leadups.empty or rows.empty:
        return keep(rows, np.zeros(len(rows), dtype=bool))
    place = context.collectives.groupby("rank").cumcount()
    keyed = rows[["rank", "match_id", "late_rank", "late_ns"]].assign(index=place.loc[rows.index])
    began = context.clocks.corrected(
        leadups["rank"].to_numpy(dtype=np.int64), leadups["since_ns"].to_numpy(dtype=np.int64)
    )
    calls = with_columns(leadups, began_ns=began)[
        ["rank", "index", *CAUSES, "phase", "module", "op", "op_ns"]
    ]
    joined = keyed.merge(calls, on=["rank", "index"], how="inner")
    is_late = (joined["rank"] == joined["late_rank"]).to_numpy(dtype=bool)
    causes = list(CAUSES)
    joined["began_ns"] -= joined["began_ns"].min()  # medians are floats: keep the numbers small
    joined[causes] = joined[causes].astype("float64")
    others = joined[~is_late].groupby("match_id")[causes].median()
    late = keep(joined, is_late).set_index("match_id")
    late = keep(late, late.index.isin(others.index))
    longer: pd.DataFrame = with_columns(late, **(late[causes] - others.loc[late.index]))
    return longer
