"""The reductions of gradients that happened: which parameter, over which ranks, how often, with what."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.tally import keep

REDUCES: Final = ("all_reduce", "reduce_scatter")
"""What adds up gradients; `reduce` leaves the sum on one rank only."""

BACKWARD: Final = ("backward", "optimizer", "other")
"""Phases in which what names a parameter is its gradient."""


@once
def members(context: Context) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the ranks of the group that a rank knows by a name."""
    return {
        (group.name, rank): tuple(sorted(group.ranks))
        for group in context.ledger.groups
        for rank in group.ranks
    }


@once
def mesh_groups(context: Context) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups along each named mesh dimension, ranks in mesh order."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for group in context.ledger.groups:
        if group.mesh_dim is not None and group.ranks not in found.setdefault(group.mesh_dim, []):
            found[group.mesh_dim].append(group.ranks)
    return found


@once
def reductions(context: Context) -> pd.DataFrame:
    """Return one row for each reduction of a step and parameter named in it, in the order they were issued.

    Columns of the collectives' table and `name`, the parameter; `over`, the ranks of its group. A bucket that
    names its first parameter and a number of others speaks of the first alone.
    """
    frame = context.in_steps
    frame = keep(
        frame,
        frame["op"].isin(REDUCES)
        & frame["phase"].isin(BACKWARD)
        & frame["parameter"].notna()
        & (frame["group_size"] > 1),
    )
    if frame.empty:
        nothing: pd.DataFrame = frame.assign(name=pd.Series(dtype=object), over=pd.Series(dtype=object))
        return nothing
    names = frame["parameter"].astype(str).str.split(", ")
    frame = frame.assign(name=names).explode("name")
    frame = keep(frame, ~frame["name"].str.startswith("..."))
    frame = frame.assign(over=pd.Series(_over(context, frame), index=frame.index, dtype=object))
    ordered: pd.DataFrame = frame.sort_values(["rank", "step", "issue_ns"], kind="stable", na_position="last")
    return ordered


def _over(context: Context, frame: pd.DataFrame) -> list[tuple[int, ...] | None]:
    known = members(context)
    pairs = zip(frame["group"].astype(str), frame["rank"], strict=True)
    return [known.get((group, int(rank))) for group, rank in pairs]


def sums(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return whether each reduction adds up; where the operation is unknown it is taken to."""
    operation: pd.Series[Any] = frame["reduce_op"].astype(object).fillna("sum").astype(str).str.lower()
    return operation.str.contains("sum")


def covered(context: Context) -> dict[str, set[tuple[int, ...]]]:
    """Return for each parameter the sets of ranks over which its gradient was reduced in some step."""
    return _covered(context)


@once
def _covered(context: Context) -> dict[str, set[tuple[int, ...]]]:
    frame = reductions(context)
    frame = keep(frame, frame["over"].notna())
    found: dict[str, set[tuple[int, ...]]] = {}
    for name, over in frame[["name", "over"]].drop_duplicates().itertuples(index=False):
        found.setdefault(str(name), set()).add(over)
    return found
