"""Whether a rank that comes late slept meanwhile: then no other rank had its core."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, with_columns

MOST_OF_IT: Final = 0.5
"""Part of the waiting for a rank that it must have slept longer than its peers."""

STEADY: Final = 0.75
"""Part of the steps that must show so much."""

FEWEST: Final = 3
"""Steps that must tell: one page fault or import makes a rank sleep in one of them."""


def slept_late(context: Context, rank: int, waited_ns: float) -> bool:
    """Whether a rank slept that much longer than the median of the others, in three of four steps or more.

    `waited_ns`: how long others wait for it per step. If ranks share cores, the system delays some of them,
    but a thread that waits for a core is not asleep. The record need not show in what it slept. It may be a
    file, a lock, another process or thread of its own, a key of the job's store. Exposed communication is
    left out, as a rank sleeps in it too. So are steps in which it is unknown for some of its collectives.
    """
    more = more_asleep_ns(context, rank)
    if more is None or int(more.notna().sum()) < FEWEST:
        return False
    # A step that does not tell is none that shows it.
    shown = float((more >= MOST_OF_IT * waited_ns).mean())
    return waited_ns > 0 and shown >= STEADY


def more_asleep_ns(context: Context, rank: int) -> pd.Series[float] | None:
    """Return by step how much longer a rank slept than the median of the others; NaN if unknown.

    None if it has no peer.
    """
    table = _own_asleep_ns(context)
    if rank not in table or len(table.columns) < 2:
        return None
    more: pd.Series[float] = table[rank] - table.drop(columns=rank).median(axis=1)
    return more.reindex(context.timed)


@once
def _own_asleep_ns(context: Context) -> pd.DataFrame:
    """Return how long each rank (column) slept in each step (row), exposed communication left out."""
    collectives = context.in_alike
    untold = _pairs(keep(collectives, collectives["exposed_ns"].isna()))
    rows = keep(context.told_rows, context.told_rows["step"].isin(context.alike))
    rows = rows.dropna(subset=["asleep_ns", "exposed_comm_ns"])
    rows = keep(rows, ~_pairs(rows).isin(untold))
    own = (rows["asleep_ns"] - rows["exposed_comm_ns"]).astype("float64").clip(lower=0.0)
    table: pd.DataFrame = with_columns(rows, own=own).pivot_table(index="step", columns="rank", values="own")
    return table


def _pairs(rows: pd.DataFrame) -> pd.MultiIndex:
    pairs: pd.MultiIndex = pd.MultiIndex.from_frame(rows[["step", "rank"]].astype("int64"))
    return pairs
