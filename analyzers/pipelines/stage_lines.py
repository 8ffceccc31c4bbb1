"""The ranks of each pipeline in order of stages."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.stage_messages import messages
from shardtoll.analyzers.shared.memo import once
from shardtoll.ledger.records.pipeline_messages import is_pipeline_dim


@once
def lines(context: Context) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline in order of stages: by the mesh, else by where messages flow."""
    pipes = [
        group.ranks for group in context.ledger.groups if is_pipeline_dim(group.mesh_dim) and group.size > 1
    ]
    if pipes:
        return sorted(set(pipes))
    frame = messages(context)
    pipes_by_flow: set[tuple[int, ...]] = set()
    for group_id, rows in frame.groupby("group_id"):
        members = context.matches.members[int(str(group_id))]
        pipes_by_flow |= set(_connected(members, rows))
    return sorted(pipes_by_flow)


def _connected(members: tuple[int, ...], rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the members of a group in parts between which no message goes, each in the group's order.

    One group may hold several pipelines: a program need not make a group for each.
    """
    home = {rank: rank for rank in members}

    def root(rank: int) -> int:
        while home[rank] != rank:
            rank = home[rank]
        return rank

    for rank_here, other in rows[["rank", "root"]].drop_duplicates().itertuples(index=False, name=None):
        if int(rank_here) in home and int(other) in home:
            home[root(int(rank_here))] = root(int(other))
    parts: dict[int, list[int]] = {}
    for rank in members:
        parts.setdefault(root(rank), []).append(rank)
    return [tuple(part) for part in parts.values() if len(part) > 1]
