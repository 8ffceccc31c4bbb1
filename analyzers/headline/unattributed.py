"""The part of the headline that speaks of time that no record explains, if that is what costs."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.headline import copies
from shardtoll.analyzers.headline.step_words import step_word
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import with_columns
from shardtoll.ledger.words.human import duration, percent

SHARE: Final = 0.2
"""Share of all ranks' steps from which unattributed time leads. It must also be more than copies and idle
time and `MORE` times what communication costs."""

MORE: Final = 3.0


@once
def _rows(context: Context) -> pd.DataFrame:
    """Return the steps with their own time and its unattributed part, both without capture's own time."""
    rows = context.parts_rows
    capture = rows["capture_ns"].astype("float64").fillna(0.0)
    unknown = (rows["unattributed_ns"].astype("float64") - capture).clip(lower=0)
    return with_columns(rows, own_ns=rows["duration_ns"].astype("float64") - capture, unknown_ns=unknown)


def share(context: Context) -> float:
    """Return the share of unattributed time in all ranks' steps, capture's own left out."""
    rows = _rows(context)
    total = float(rows["own_ns"].sum())
    return float(rows["unknown_ns"].sum()) / total if total > 0 else 0.0


def clause(context: Context) -> str | None:
    """Return how much is unattributed, with figures; None if something else costs more."""
    unknown = share(context)
    copied, idle, comm = copies.shares(context)
    if unknown < SHARE or unknown < MORE * comm or unknown < max(copied, idle):
        return None
    mean = _rows(context).groupby("rank")[["own_ns", "unknown_ns"]].mean()
    row = int(np.argmax(mean["unknown_ns"].to_numpy(dtype=np.float64)))
    worst, rank = mean.iloc[row], int(mean.index[row])
    lost, took = float(worst["unknown_ns"]), float(worst["own_ns"])
    return (
        f"No record explains {duration(lost)} ({percent(lost / took)}) of rank {rank}'s {duration(took)} "
        f"{step_word(context)}, more than communication costs"
    )


def besides(context: Context) -> str:
    """Return a clause on unattributed time if it is more than exposed communication but does not lead."""
    unknown = share(context)
    _, _, comm = copies.shares(context)
    return f"; another {percent(unknown)} is unattributed" if unknown >= max(SHARE, comm) else ""
