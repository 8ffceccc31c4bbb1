"""Collectives that carry a gradient, or may: what they name, and bytes whose parameters nobody knows."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.replicas.gradient_groups import MANY, REDUCERS, carried
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import WIDTHS
from shardtoll.analyzers.shared.tally import begins_with, keep
from shardtoll.ledger.records.ddp_causes import DDP

WHOLE: Final = ("all_gather", "gather")
"""Operations whose message counts the parts of all ranks."""


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
    names = {name for each in texts for name in str(each).split(", ") if not name.startswith(MANY)}
    return frozenset(names) | carried(context)


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
    sizes = _sizes(context)
    known = frame["parameter"].map(lambda text: _known(text, sizes, carried(context)), na_action=None)
    times = np.where(frame["op"].isin(WHOLE), frame["group_size"].astype("float64"), 1.0)
    message = frame["message_bytes"].astype("float64").to_numpy(dtype=np.float64, na_value=np.inf)
    unknown: npt.NDArray[np.float64] = message - known.to_numpy(dtype=np.float64) * times
    members = [
        frozenset(of) if (of := context.members.get((str(group), int(rank)))) is not None else None
        for group, rank in frame[["group", "rank"]].itertuples(index=False)
    ]
    rows = frame[["rank", "step"]].assign(unknown=unknown, members=members)
    return keep(rows, unknown > 0)


def _known(text: Any, sizes: dict[str, int], of_many: frozenset[str]) -> float:
    """Return the bytes of the parameters that a collective names; of many, of all that were seen in such."""
    if text is None or pd.isna(text):
        return 0.0
    parts = str(text).split(", ")
    names = {name for name in parts if not name.startswith(MANY)}
    if len(names) < len(parts):
        names |= of_many
    return float(sum(sizes.get(name, 0) for name in names))


@once
def _sizes(context: Context) -> dict[str, int]:
    """Return the bytes of each whole parameter."""
    table = context.model.drop_duplicates("name")
    return {
        str(name): math.prod(json.loads(shape)) * WIDTHS.get(str(dtype), 1)
        for name, shape, dtype in table[["name", "shape", "dtype"]].itertuples(index=False)
    }


def least_bytes(shape: str) -> int:
    """Return the fewest bytes in a message that may still carry a gradient of this shape, compressed.

    PowerSGD sends a product of two matrices of rank one. The larger of them has a number for each row or each
    column. No number is taken to be less than a byte.
    """
    sides: list[int] = json.loads(shape)
    if len(sides) < 2:
        return math.prod(sides)
    return max(sides[0], math.prod(sides[1:]))
