"""The messages between a pipeline's stages."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Where
from shardtoll.ledger.records.pipeline_messages import by_schedule, in_pipeline_dim, in_set_up, one_way


@once
def messages(context: Context) -> pd.DataFrame:
    """Return the collectives inside steps that are sends and receives between pipeline stages.

    A group is a pipeline if its mesh dimension says so, or if a schedule says so of one of its messages.
    If neither does, and it has no mesh dimension, the directions decide. It is a pipeline if messages of
    known waiting flow one way in forward and the other way in backward. A ring's flow both ways. Messages
    that set up a schedule do not count as messages between stages.
    """
    frame = context.in_steps
    frame = keep(frame, frame["op"].isin(PEER_OPS) & frame["root"].notna() & frame["group_id"].notna())
    frame = keep(frame, ~in_set_up(frame["caused_by_op"]))
    scheduled = frame.loc[by_schedule(frame["caused_by_op"]), "group_id"].unique()
    named = in_pipeline_dim(frame["mesh_dim"]) | frame["group_id"].isin(scheduled).to_numpy(dtype=bool)
    unnamed = keep(frame, frame["mesh_dim"].isna().to_numpy(dtype=bool) & ~named)
    timed = keep(unnamed, unnamed["waited_ns"].notna() & unnamed["step"].isin(context.alike))
    flowing = timed.loc[one_way(timed), "group_id"].unique()
    return keep(frame, named | frame.index.isin(unnamed.index[unnamed["group_id"].isin(flowing)]))


def perhaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the sends and receives that may be between stages, peers and phases known or not."""
    frame = keep(frame, frame["op"].isin(PEER_OPS) & ~in_set_up(frame["caused_by_op"]))
    scheduled = by_schedule(frame["caused_by_op"]) | in_pipeline_dim(frame["mesh_dim"])
    return keep(frame, scheduled | frame["mesh_dim"].isna().to_numpy(dtype=bool))


def set_up_steps(context: Context) -> list[int]:
    """Return the steps in which a schedule sets itself up."""
    frame = context.in_steps
    return sorted({int(step) for step in keep(frame, in_set_up(frame["caused_by_op"]))["step"]})


def place(context: Context, rank: int) -> Where:
    """Return where a rank runs its schedule: the line at which most of its messages are sent."""
    frame = perhaps(context.in_alike)
    within = keep(frame, frame["rank"] == rank)
    if within.empty:
        return Where()
    line, dim, group = (within[name].mode(dropna=True) for name in ("source", "mesh_dim", "group"))
    return Where(
        *(None,) * 4, *(None if values.empty else str(values.iloc[0]) for values in (line, group, dim))
    )
