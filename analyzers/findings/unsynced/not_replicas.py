"""Why ranks that reduce gradients together may be no replicas: they exchange what they compute, or differ."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.replicas.reductions import mesh_groups
from shardtoll.analyzers.findings.unsynced.carriers import from_first_step
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, keep, number
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger.records.ddp_causes import DDP

FEW_BYTES: Final = 64
"""Bytes that a mean loss or a few counts take, and no activation."""

NOT_ACTIVATIONS: Final = ("barrier", "scatter", *PEER_OPS)
"""Operations of a forward that do not tell how a layer is divided: a scatter gives each rank its own batch,
and messages to peers are looked at by themselves."""


def may_differ(context: Context, over: tuple[int, ...]) -> bool:
    """Whether some of these ranks may hold other layers, or other parts of one, under equal names.

    In a pipeline, with tensor, sequence or expert parallelism ranks exchange what the forward computes.
    """
    ranks = frozenset(over)
    return any(_share(ranks, other) for other in (*_forward(context), *_peers(context)))


def _share(ranks: frozenset[int], other: frozenset[int]) -> bool:
    return len(ranks & other) > 1


@once
def _forward(context: Context) -> tuple[frozenset[int], ...]:
    """Return the groups that exchange more than a few numbers in forward."""
    frame = context.in_steps
    small = (frame["message_bytes"] <= FEW_BYTES).fillna(False)
    frame = keep(
        frame,
        frame["phase"].isin(("forward", "recompute"))
        & ~frame["op"].isin(NOT_ACTIVATIONS)
        & ~small
        & ~begins_with(frame["caused_by_op"], (*WRAPPER_CAUSES, DDP)),
    )
    pairs = frame[["group", "rank"]].drop_duplicates().itertuples(index=False)
    found = (context.members.get((str(group), int(rank))) for group, rank in pairs)
    return tuple({frozenset(over) for over in found if over is not None})


@once
def _peers(context: Context) -> tuple[frozenset[int], ...]:
    """Return the sets of ranks that messages from rank to rank connect, in steps, between and after them."""
    frame = from_first_step(context)
    frame = keep(frame, frame["op"].isin(PEER_OPS))
    sets: list[set[int]] = []
    for group, rank, root in frame[["group", "rank", "root"]].drop_duplicates().itertuples(index=False):
        peer = number(root)
        # Without a known peer it may be any rank of the group.
        others = context.members.get((str(group), int(rank)), ()) if peer is None else (peer,)
        mine = {int(rank), *others}
        joined = [other for other in sets if other & mine]
        sets = [other for other in sets if not other & mine]
        sets.append(mine.union(*joined))
    return tuple(frozenset(each) for each in sets)


def spread_over(context: Context, mesh_dims: str | None, over: tuple[int, ...]) -> bool:
    """Whether a DTensor on these mesh dimensions lies across some of the ranks; true if that is unknown."""
    dims = [dim.strip() for dim in (mesh_dims or "").split(",") if dim.strip()]
    groups = mesh_groups(context)
    if not dims or any(dim not in groups for dim in dims):
        return True
    return any(_share(frozenset(over), frozenset(group)) for dim in dims for group in groups[dim])
