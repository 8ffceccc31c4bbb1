"""Messages that may add up the values of parameters rather than gradients, and when values were equal.

A line that asks for its message right after a backward, as a surveyed step shows it, adds up gradients.
Averages of parameters follow the optimizer, or come before the forward.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.micro_batches import BACKWARD as PASSES
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD, REDUCES
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import codes, keep, text

BEFORE: Final = -1
"""Stands for the time before the first step."""

LINE: Final = ["source", "op", "group"]


class Sum(Struct, frozen=True):
    """Values that one line added up over some ranks in one step, one rank's part of it."""

    step: int
    """The last that had begun; or `BEFORE`."""
    over: tuple[int, ...]
    name: str | None
    """The parameter whose values these are; None of what has no name."""
    largest: int
    """Bytes of the largest message."""
    whole: int
    """Bytes of all of them."""
    source: str | None
    divides: bool
    """Whether it is an average, not a sum that the program has to divide."""
    between: bool
    """Whether no step was under way: what a name says is not known to be values, nor does a look follow."""


@once
def value_sums(context: Context) -> list[Sum]:
    """Return messages that may add up values: marked ones, and unnamed ones that are no gradients.

    Only floats, and only a sum or an average: a maximum or a count averages nothing.
    """
    frame = context.collectives
    of_values, between = frame["of_values"].fillna(False).astype(bool), frame["step"].isna()
    mask = frame["op"].isin(REDUCES) & (frame["phase"].isin(BACKWARD) | between) & (frame["group_size"] > 1)
    mask &= frame["message_bytes"].notna() & (frame["parameter"].isna() | of_values | between)
    frame = keep(frame, mask & ~frame["implicit"].fillna(False).astype(bool))
    frame = keep(frame, adds_floats(frame))
    if frame.empty:
        return []
    frame = keep(frame, frame["parameter"].notna() | ~_of_gradients(context, frame))
    between = frame["step"].isna()
    frame = frame.assign(between=between, step=_steps(context, frame), divides=_divides(frame))
    ranks_of = context.members
    keys = ["step", "rank", "group", "parameter", "source", "divides", "between"]
    sizes = (
        frame.groupby(keys, dropna=False, observed=True)["message_bytes"].agg(["max", "sum"]).reset_index()
    )
    sums_of = {}
    for step, rank, group, names, source, divides, apart, largest, whole in sizes.itertuples(index=False):
        over = ranks_of.get((str(group), int(rank)))
        if over is None:
            continue
        for name in names_in(names):
            each = Sum(
                int(step), over, name, int(largest), int(whole), text(source), bool(divides), bool(apart)
            )
            # Each rank tells of it.
            sums_of[step, over, name, str(source), divides, apart] = each
    return list(sums_of.values())


def names_in(parameter: object) -> list[str | None]:
    """Return the parameters that go in one message; None for those that it may hold and does not name."""
    if not isinstance(parameter, str):
        return [None]
    return [None if name.startswith("...") else name for name in parameter.split(", ")]


def adds_floats(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows add up or average numbers that may be values or gradients; unknown ones may be."""
    operation = frame["reduce_op"].astype(object).fillna("sum").astype(str).str.lower()
    dtype = frame["dtype"].astype(object).fillna("float").astype(str)
    is_sum: pd.Series[bool] = operation.str.contains("sum|avg|mean") & dtype.str.contains("float")
    return is_sum


def _divides(frame: pd.DataFrame) -> pd.Series[bool]:
    divides: pd.Series[bool] = (
        frame["reduce_op"].astype(object).fillna("").astype(str).str.lower().isin(("avg", "mean"))
    )
    return divides


def _steps(context: Context, frame: pd.DataFrame) -> pd.Series[int]:
    """Return each row's step; of what lies between steps the last that had ended on its rank."""
    steps = frame["step"].fillna(BEFORE).astype(np.int64).to_numpy(copy=True)
    between = frame["step"].isna().to_numpy(dtype=bool)
    began_ns = frame["start_ns"].fillna(frame["issue_ns"]).to_numpy(dtype=np.float64, na_value=-np.inf)
    rows = keep(context.step_rows, context.step_rows["duration_ns"].notna())
    for rank, of_rank in rows.groupby("rank"):
        ends = of_rank["start_ns"].astype(np.int64) + of_rank["duration_ns"].astype(np.int64)
        order = np.argsort(ends.to_numpy(), kind="stable")
        numbers = np.append(BEFORE, of_rank["step"].to_numpy(dtype=np.int64)[order])
        mine = between & (frame["rank"] == rank).to_numpy(dtype=bool)
        steps[mine] = numbers[np.searchsorted(ends.to_numpy()[order], began_ns[mine], "right")]
    numbered_steps: pd.Series[int] = pd.Series(steps, index=frame.index)
    return numbered_steps


def _of_gradients(context: Context, frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows a line asked for that was seen to follow a backward."""
    computes = context.computes_in_steps
    line, _ = codes(frame, LINE)
    after = np.zeros(len(frame), dtype=bool)
    issued_ns = frame["issue_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    surveyed = frame["step"].isin(context.surveyed).to_numpy(dtype=bool) & ~np.isnan(issued_ns)
    for rank, of_rank in computes.groupby("rank"):
        ordered = of_rank.sort_values("start_ns", kind="stable")
        starts = ordered["start_ns"].to_numpy(dtype=np.float64)
        backward = ordered["phase"].isin(PASSES).to_numpy(dtype=bool)
        mine = np.flatnonzero(surveyed & (frame["rank"] == rank).to_numpy(dtype=bool))
        last = np.searchsorted(starts, issued_ns[mine], "right") - 1
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
