"""The reductions of gradients that happened: which parameter, over which ranks, how often, with what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import codes, keep, with_columns
from shardtoll.ledger import Group

REDUCES: Final = ("all_reduce", "reduce_scatter")
"""Ops that add up gradients; `reduce` leaves the sum on one rank only."""

BACKWARD: Final = ("backward", "optimizer", "other")
"""Phases in which what names a parameter is its gradient, or its values if `of_values` says so."""


@once
def mesh_groups(context: Context) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups along each named mesh dimension, ranks in mesh order.

    If a rank is in two groups of a name, as two meshes with equal names leave them, those that no collective
    used are left out.
    """
    by_dim: dict[str, list[Group]] = {}
    for group in context.ledger.groups:
        if group.mesh_dim is not None:
            by_dim.setdefault(group.mesh_dim, []).append(group)
    return {dim: _of_mesh(context, groups) for dim, groups in by_dim.items()}


def _of_mesh(context: Context, groups: list[Group]) -> list[tuple[int, ...]]:
    every = list(dict.fromkeys(group.ranks for group in groups))
    if not clash(every):
        return every
    pairs = context.collectives[["group", "rank"]].drop_duplicates()
    used = set(zip(pairs["group"].astype(str), pairs["rank"].astype(int), strict=True))
    kept = (group.ranks for group in groups if any((group.name, rank) in used for rank in group.ranks))
    return list(dict.fromkeys(kept)) or every


def clash(groups: Iterable[tuple[int, ...]]) -> bool:
    """Whether some rank is in two of the groups, so that they cannot lie along one dimension of one mesh."""
    ranks = [rank for group in groups for rank in group]
    return len(ranks) > len(set(ranks))


@once
def reductions(context: Context) -> pd.DataFrame:
    """Return one row for each reduction of a step and parameter named in it, in the order they were issued.

    Columns of the collectives' table and `name`, the parameter; `over`, the ranks of its group; `row`, its
    place in that table. A bucket that names its first parameter and a number of others speaks of the first
    alone.
    """
    frame = context.in_steps
    frame = keep(
        frame,
        frame["op"].isin(REDUCES)
        & frame["phase"].isin(BACKWARD)
        & frame["parameter"].notna()
        & (frame["group_size"] > 1)
        & ~frame["of_values"].fillna(False).astype(bool),
    )
    if frame.empty:
        nothing: pd.DataFrame = with_columns(
            frame, name=pd.Series(dtype=object), over=pd.Series(dtype=object)
        )
        return nothing
    subject, subjects = pd.factorize(frame["parameter"])
    listed = [[name for name in str(text).split(", ") if not name.startswith("...")] for text in subjects]
    each = np.array([len(names) for names in listed], dtype=np.int64)[subject]
    names = np.array([name for names in listed for name in names], dtype=object)
    starts = np.concatenate([[0], np.cumsum([len(names) for names in listed])])[subject]
    rows = np.repeat(np.arange(len(frame)), each)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
    over = _over(context, frame)
    frame = frame.iloc[rows].assign(
        name=names[np.repeat(starts, each) + nth], over=over[rows], row=frame.index[rows]
    )
    ordered: pd.DataFrame = frame.sort_values(["rank", "step", "issue_ns"], kind="stable", na_position="last")
    numbered: pd.DataFrame = ordered.reset_index(drop=True)
    return numbered


def _over(context: Context, frame: pd.DataFrame) -> npt.NDArray[np.object_]:
    ranks_of = context.members
    number, first = codes(frame, ["group", "rank"])
    overs = np.empty(len(first), dtype=object)
    for row, (group, rank) in enumerate(zip(first["group"].astype(str), first["rank"], strict=True)):
        overs[row] = ranks_of.get((group, int(rank)))
    return overs[number]


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
    sets: dict[str, set[tuple[int, ...]]] = {}
    for name, over in frame[["name", "over"]].drop_duplicates().itertuples(index=False):
        sets.setdefault(str(name), set()).add(over)
    return sets
