"""Collectives that carry a gradient, or may: what they name, and bytes whose parameters nobody knows."""

from __future__ import annotations

import json
import math

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD
from shardtoll.analyzers.findings.unsynced.gradient_groups import REDUCERS, carried, names_in
from shardtoll.analyzers.findings.unsynced.known_elements import unknown_of
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, keep, with_columns
from shardtoll.ledger.records.ddp_causes import DDP


@once
def from_first_step(context: Context) -> pd.DataFrame:
    """Return the collectives of steps and of what lies between and after them, without what came before.

    Before the first step weights are sent to ranks that have others: that is no reduction.
    """
    frame = context.collectives
    starts = context.step_rows.groupby("rank")["start_ns"].min()
    begun = frame["rank"].map(starts)
    return keep(frame, frame["step"].notna() | (frame["issue_ns"] >= begun).fillna(True))


@once
def named(context: Context) -> frozenset[str]:
    """Return the parameters that some collective carried, by their gradients or their values."""
    texts = from_first_step(context)["parameter"].dropna().unique()
    return frozenset(name for text in texts for name in names_in(text)) | carried(context)


def unknown_bytes(context: Context, over: tuple[int, ...]) -> float:
    """Return the most bytes that one rank sent among these ranks in a step, of nobody knows what.

    After the forward, or as part of no step; infinite if some message's size is unknown. DDP and FSDP know
    which parameters they reduce: see `Reducing`.
    """
    rows = _unknown(context)
    inside = rows["members"].map(lambda members: members is None or len(members & frozenset(over)) > 1)
    rows = keep(rows, inside.astype(bool) & rows["rank"].isin(over))
    if rows.empty:
        return 0.0
    # Outside of steps each message is a matter of its own: no step ends the sum.
    outside = float(rows["unknown"][rows["step"].isna()].max())
    sums = rows.groupby(["rank", "step"])["unknown"].sum()
    return max(0.0 if math.isnan(outside) else outside, float(sums.max()) if len(sums) else 0.0)


@once
def _unknown(context: Context) -> pd.DataFrame:
    """Return rank, step, members and unknown bytes of each message that holds more than the named ones."""
    frame = from_first_step(context)
    frame = keep(
        frame,
        frame["phase"].isin(BACKWARD)
        & ~frame["op"].isin(("barrier", *PEER_OPS))
        & (frame["group_size"] > 1)
        & ~begins_with(frame["caused_by_op"], (*REDUCERS, DDP)),
    )
    unknown = unknown_of(context, frame)
    frame, unknown = keep(frame, unknown > 0), unknown[unknown > 0]
    members = [
        frozenset(of) if (of := context.members.get((str(group), int(rank)))) is not None else None
        for group, rank in frame[["group", "rank"]].itertuples(index=False)
    ]
    return with_columns(frame[["rank", "step"]], unknown=unknown, members=members)


def least_bytes(shape: str) -> int:
    """Return the fewest bytes in a message that may still carry a gradient of this shape, compressed.

    PowerSGD sends a product of two matrices of rank one. The larger of them has a number for each row or each
    column. No number is taken to be less than a byte.
    """
    sides: list[int] = json.loads(shape)
    if len(sides) < 2:
        return math.prod(sides)
    return max(sides[0], math.prod(sides[1:]))
