"""Ranks whose gradients were equal before they were reduced: everything that they computed is the same."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.over_ranks import Ranks
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.wrapper_causes import WRAPPER_CAUSES

REDUCTIONS: Final = ("all_reduce", "reduce_scatter")

MOST: Final = 0.9
"""Share of the reduced bytes that is equal where data are. A few gradients are so whatever the data, as that
of a penalty on weights."""


def same_gradients(context: Context) -> list[Ranks]:
    """Return the sets of ranks that had the same gradients in the surveyed steps, before reducing them.

    Only what a wrapper reduces, or what is known to be a parameter's gradient, says so.
    """
    frame = context.in_surveyed
    of_gradient = frame["parameter"].notna() | frame["caused_by_op"].str.startswith(WRAPPER_CAUSES).fillna(
        False
    )
    frame = keep(
        frame,
        frame["op"].isin(REDUCTIONS)
        & (frame["phase"] == "backward")
        & (frame["group_size"] > 1)
        & frame["input_hash"].notna()
        & frame["message_bytes"].notna()
        & frame["match_id"].notna()
        & of_gradient,
    )
    if frame.empty:
        return []
    one = frame.groupby("match_id").agg(
        different=("input_hash", "nunique"),
        ranks=("rank", "nunique"),
        size=("group_size", "first"),
        group=("group_id", "first"),
        moved=("message_bytes", "first"),
    )
    one = one[one["ranks"] == one["size"]]
    equal = one["moved"].where(one["different"] == 1, 0).groupby(one["group"]).sum()
    whole = one["moved"].groupby(one["group"]).sum()
    groups = whole.index[(whole > 0) & (equal >= MOST * whole)]
    return [tuple(sorted(context.matches.members[int(group)])) for group in groups]
