"""Messages that may add up the values of parameters rather than gradients, and when values were alike.

A line that asks for its message right after a backward, as a surveyed step shows it, adds up gradients: what
averages parameters follows the optimizer, or comes before the forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.micro_batches import BACKWARD as PASSES
from shardtoll.analyzers.reductions import BACKWARD, REDUCES, members
from shardtoll.analyzers.tally import codes, keep, text

OUTSIDE: Final = -1
"""Stands for the time between steps."""

LINE: Final = ["source", "op", "group"]


@dataclass(frozen=True, slots=True)
class Sum:
    """What one line added up over some ranks in one step, one rank's part of it."""

    step: int
    """Or `OUTSIDE`."""
    over: tuple[int, ...]
    name: str | None
    """The parameter whose values these are; None of what has no name."""
    largest: int
    """Bytes of the largest message."""
    whole: int
    """Bytes of all of them."""
    source: str | None


@once
def value_sums(context: Context) -> list[Sum]:
    """Return what may have added up values: what says so, and what names no parameter and is no gradient."""
    frame = context.collectives
    of_values = frame["of_values"].fillna(False).astype(bool)
    mask = frame["op"].isin(REDUCES) & frame["phase"].isin(BACKWARD) & (frame["group_size"] > 1)
    mask &= frame["message_bytes"].notna() & (frame["parameter"].isna() | of_values)
    frame = keep(frame, mask & ~frame["implicit"].fillna(False).astype(bool))
    if frame.empty:
        return []
    frame = frame.assign(step=frame["step"].fillna(OUTSIDE).astype(np.int64))
    frame = keep(frame, frame["parameter"].notna() | ~_of_gradients(context, frame))
    known = members(context)
    keys = ["step", "rank", "group", "parameter", "source"]
    sizes = (
        frame.groupby(keys, dropna=False, observed=True)["message_bytes"].agg(["max", "sum"]).reset_index()
    )
    found = {}
    for step, rank, group, name, source, largest, whole in sizes.itertuples(index=False):
        over = known.get((str(group), int(rank)))
        if over is not None:
            # Each rank tells of it.
            found[step, over, name if isinstance(name, str) else None, str(source)] = Sum(
                int(step), over, text(name), int(largest), int(whole), text(source)
            )
    return list(found.values())


def _of_gradients(context: Context, frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows a line asked for that was seen to follow a backward."""
    computes = context.computes_in_steps
    line, _ = codes(frame, LINE)
    after = np.zeros(len(frame), dtype=bool)
    at = frame["issue_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    surveyed = frame["step"].isin(context.surveyed).to_numpy(dtype=bool) & ~np.isnan(at)
    for rank, of_rank in computes.groupby("rank"):
        ordered = of_rank.sort_values("start_ns", kind="stable")
        starts = ordered["start_ns"].to_numpy(dtype=np.float64)
        backward = ordered["phase"].isin(PASSES).to_numpy(dtype=bool)
        mine = np.flatnonzero(surveyed & (frame["rank"] == rank).to_numpy(dtype=bool))
        last = np.searchsorted(starts, at[mine], "right") - 1
        after[mine] = (last >= 0) & backward[np.maximum(last, 0)]
    seen = np.bincount(line, weights=after, minlength=1) > 0
    rows: pd.Series[bool] = pd.Series(seen[line], index=frame.index)
    return rows


@once
def looks(context: Context) -> dict[str, pd.DataFrame]:
    """Return each parameter's fingerprints, a row a step (-1 before the first), a column a rank."""
    values = context.values
    rows = keep(values, (values["kind"] == "parameter") & values["hash"].notna())
    rows = rows.assign(step=rows["step"].fillna(-1).astype("int64"), hash=rows["hash"].astype("int64"))
    return {
        str(name): of_name.pivot_table(index="step", columns="rank", values="hash", aggfunc="first")
        for name, of_name in rows.groupby("name", observed=True, sort=False)
    }
