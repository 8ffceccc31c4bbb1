"""The messages between a pipeline's stages, and what they say of it: its ranks, micro-batches and stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Where
from shardtoll.ledger.records.pipeline_messages import (
    by_schedule,
    in_pipeline_dim,
    in_set_up,
    is_pipeline_dim,
    one_way,
)

Lanes = dict[tuple[int, int], float]
"""Sender and receiver -> messages between them, per step."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the messages of a step say of the pipelines, all of one shape."""

    ranks: int
    micro_batches: int
    stages_per_rank: int = 1

    @property
    def ideal_share(self) -> float:
        """The bubble of interleaved 1F1B, of 1F1B and GPipe where ranks have one stage each."""
        idle = self.ranks - 1
        return idle / (self.stages_per_rank * self.micro_batches + idle)


@once
def messages(context: Context) -> pd.DataFrame:
    """Return the collectives inside steps that are sends and receives between pipeline stages.

    A group is a pipeline if its mesh dimension says so, or if a schedule says so of one of its messages.
    Where neither does, and it has no mesh dimension, it is one if messages whose waiting is known flow one
    way in forward and the other way in backward; a ring's flow both ways. What a schedule sends to set
    itself up is no message between stages.
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


def set_up_steps(context: Context) -> list[int]:
    """Return the steps in which a schedule sets itself up."""
    frame = context.in_steps
    return sorted({int(step) for step in keep(frame, in_set_up(frame["caused_by_op"]))["step"]})


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


def _lanes(rows: pd.DataFrame) -> Lanes:
    """Return the messages per step of each sender and receiver, as the end that lists more of them says."""
    sends = (rows["op"] == "send").to_numpy(dtype=bool)
    rank, peer = rows["rank"].to_numpy(dtype=np.int64), rows["root"].to_numpy(dtype=np.int64)
    ends = pd.DataFrame(
        {
            "sender": np.where(sends, rank, peer),
            "receiver": np.where(sends, peer, rank),
            "sends": sends,
            "step": rows["step"].to_numpy(dtype=np.int64),
        }
    )
    per_step = ends.groupby(["sender", "receiver", "sends", "step"]).size()
    middle = per_step.groupby(level=["sender", "receiver", "sends"]).median()
    most = middle.groupby(level=["sender", "receiver"]).max()
    return {(int(sender), int(receiver)): float(count) for (sender, receiver), count in most.items()}


def shape(context: Context) -> Shape | None:
    """Return the shape of the pipelines; None where messages do not tell, or pipelines differ.

    With m micro-batches and v stages a rank, laid in turn, the first rank sends m v messages to the second
    in forward and the last rank m (v - 1) to the first. Laid as a V, ranks send m up and m down.
    """
    pipes = lines(context)
    if not pipes or len({len(line) for line in pipes}) > 1:
        return None
    rows = messages(context)
    forward = _lanes(keep(rows, rows["phase"] == "forward"))
    backward = _lanes(keep(rows, rows["phase"] == "backward"))
    # Backward sends the same numbers the other way: it tells where forward's ends were not seen.
    shapes = [
        each
        for line in pipes
        for each in (_shape(forward, line), _shape({(b, a): n for (a, b), n in backward.items()}, line))
        if each is not None
    ]
    if shapes:
        # A tensor without a gradient, as a mask, goes one way only: the fewest are the micro-batches.
        return min(shapes, key=lambda each: each.micro_batches)
    unphased = [_wrapped(_lanes(rows), line) for line in pipes]
    told = [each for each in unphased if each is not None]
    if told:
        return min(told, key=lambda each: each.micro_batches)
    batches = _by_ends(context, pipes)
    return None if batches is None else Shape(len(pipes[0]), batches)


def _shape(lanes: Lanes, line: tuple[int, ...]) -> Shape | None:
    first, second, last = line[0], line[1], line[-1]
    up, wrapped = lanes.get((first, second), 0.0), lanes.get((last, first), 0.0)
    down = lanes.get((second, first), 0.0)
    if not up:
        return None
    as_v = down == up
    batches = up if as_v else up - wrapped
    # Numbers that fit neither layout say nothing.
    if batches <= 0 or batches != round(batches) or up % batches:
        return None
    return Shape(len(line), round(batches), 2 if as_v else round(up / batches))


def _wrapped(lanes: Lanes, line: tuple[int, ...]) -> Shape | None:
    """Return the shape where phases are unknown, by the messages from the last rank back to the first.

    Between neighbours go m v messages each way, from the last rank to the first m (v - 1) in forward, and as
    many back. Of two ranks neighbours and ends are the same, so that nothing tells them apart.
    """
    first, second, last = line[0], line[1], line[-1]
    up, down = lanes.get((first, second), 0.0), lanes.get((second, first), 0.0)
    ahead, back = lanes.get((last, first), 0.0), lanes.get((first, last), 0.0)
    if len(line) < 3 or up != down or ahead != back or not ahead:
        return None
    batches = up - ahead
    if batches <= 0 or batches != round(batches) or up % batches:
        return None
    return Shape(len(line), round(batches), round(up / batches))


def _by_ends(context: Context, pipes: list[tuple[int, ...]]) -> int | None:
    """Return the micro-batches where phases are unknown: the sends per step of a pipeline's ends.

    The first stage sends each micro-batch forward once, the last one's gradients once. Ranks with several
    stages send more than that: see `_wrapped`.
    """
    ends = {rank for line in pipes for rank in (line[0], line[-1])}
    rows = _perhaps(context.in_steps)
    sends = keep(rows, (rows["op"] == "send") & rows["rank"].isin(sorted(ends)))
    per_rank = sends.groupby("rank").size()
    if per_rank.empty:
        return None
    return round(float(np.median(per_rank.to_numpy())) / len(context.steps)) or None


def _perhaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the sends and receives that may be between stages, peers and phases known or not."""
    frame = keep(frame, frame["op"].isin(PEER_OPS) & ~in_set_up(frame["caused_by_op"]))
    scheduled = by_schedule(frame["caused_by_op"]) | in_pipeline_dim(frame["mesh_dim"])
    return keep(frame, scheduled | frame["mesh_dim"].isna().to_numpy(dtype=bool))


def place(context: Context, rank: int) -> Where:
    """Return where a rank runs its schedule: the line at which most of its messages are sent."""
    frame = _perhaps(context.in_alike)
    within = keep(frame, frame["rank"] == rank)
    if within.empty:
        return Where()
    line, dim, group = (within[name].mode(dropna=True) for name in ("source", "mesh_dim", "group"))
    return Where(
        *(None,) * 4, *(None if values.empty else str(values.iloc[0]) for values in (line, group, dim))
    )
