"""Whether a rank that comes late slept meanwhile: then no other rank had its core."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context

MOST_OF_IT: Final = 0.5
"""Part of the waiting for a rank that it must have slept longer than its peers."""

STEADY: Final = 0.25
"""Quantile of the steps that must show so much."""


def slept_late(context: Context, rank: int, waited_ns: float) -> bool:
    """Whether a rank slept that much longer than the median of the others, in three of four steps or more.

    `waited_ns`: how long others wait for it per step. Where ranks share cores the system delays one or
    another, but a thread that is ready to run is not asleep: to sleep, read a file or wait for a lock is the
    rank's own. Exposed communication is left out, as a rank sleeps in it too. False where nothing tells.
    """
    rows = context.told_rows
    rows = rows[rows["step"].isin(context.alike)].dropna(subset=["asleep_ns", "exposed_comm_ns"])
    own = (rows["asleep_ns"] - rows["exposed_comm_ns"]).astype("float64").clip(lower=0.0)
    table = pd.DataFrame({"step": rows["step"], "rank": rows["rank"], "own": own}).pivot_table(
        index="step", columns="rank", values="own"
    )
    if rank not in table or len(table.columns) < 2:
        return False
    others = table.drop(columns=rank).median(axis=1)
    more = (table[rank] - others).dropna()
    return len(more) > 0 and float(more.quantile(STEADY)) >= MOST_OF_IT * waited_ns > 0
