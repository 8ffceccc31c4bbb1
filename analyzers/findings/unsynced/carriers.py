"""Collectives that carry a gradient, or may: what they name, and bytes whose parameters nobody knows.

How much of a message is of parameters that its record names, counted in elements.

Elements are compared, not bytes: gradients may be sent in a narrower dtype than that of their parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.peers import PEER_OPS
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD
from shardtoll.analyzers.findings.unsynced.gradient_groups import (
    REDUCERS,
    carried,
    how_many,
    is_many,
    names_in,
)
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import WIDTHS
from shardtoll.analyzers.shared.tally import begins_with, codes, keep, numbered, with_columns
from shardtoll.ledger.records.ddp_causes import DDP

WHOLE: Final = ("all_gather", "gather")
"""Operations whose message counts the parts of all ranks."""

_Numbers = npt.NDArray[np.float64]


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
    unknown = _unknown_of(context, frame)
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


class _Held(Struct, frozen=True):
    """Sizes of the parameters that each rank holds."""

    elements: dict[int, dict[str, int]]
    """Rank -> name -> elements on it."""
    many: dict[int, frozenset[str]]
    """Rank -> those that were seen in a call of many."""

    def of(self, rank: int, names: Collection[str]) -> float:
        """Return how many elements of these parameters a rank holds."""
        mine = self.elements.get(rank, {})
        return float(sum(mine.get(name, 0) for name in names))


@once
def _held(context: Context) -> _Held:
    """Return what the table of parameters says of each rank."""
    elements: dict[int, dict[str, int]] = {}
    many: dict[int, set[str]] = {}
    columns = ["rank", "name", "numel", "carried"]
    for rank, name, numel, seen in context.model[columns].itertuples(index=False):
        elements.setdefault(int(rank), {})[str(name)] = int(numel)
        if not pd.isna(seen) and seen:
            many.setdefault(int(rank), set()).add(str(name))
    return _Held(elements, {rank: frozenset(names) for rank, names in many.items()})


def _unknown_of(context: Context, frame: pd.DataFrame) -> _Numbers:
    """Return how many bytes of each of these collectives' messages are of nobody knows what."""
    width = frame["dtype"].map(WIDTHS).fillna(1).to_numpy(dtype=np.float64)
    message = frame["message_bytes"].astype("float64").to_numpy(dtype=np.float64, na_value=np.inf)
    times = np.where(frame["op"].isin(WHOLE), frame["group_size"].astype("float64"), 1.0)
    elements = message / width / times
    number, first = codes(frame[["rank", "parameter"]], ["rank", "parameter"])
    pairs = list(first.itertuples(index=False, name=None))
    sizes = [_held(context).of(int(rank), names_in(text)) for rank, text in pairs]
    known = np.array(sizes, dtype=np.float64)[number]
    of_many = np.array([is_many(text) for _, text in pairs], dtype=np.bool_)[number]
    if of_many.any():
        known[of_many] = _of_many(_held(context), frame[of_many], elements[of_many])
    # Less than the whole gradient that it names: it is a part of it, or compressed, and may hold others too.
    unknown = np.where(elements < known, elements, elements - known)
    of_bytes: _Numbers = unknown * width * times
    return of_bytes


def _of_many(holds: _Held, frame: pd.DataFrame, elements: _Numbers) -> _Numbers:
    """Return how many elements of each call of many tensors are of known parameters.

    A call says how many it holds, and names the first. If calls of one step and group say as many as were
    seen in such calls in all, they hold these: what is known is shared out by size. Else those that a call
    does not name are taken to be the smallest.
    """
    count = np.array([how_many(text) for text in frame["parameter"]], dtype=np.int64)
    ranks, texts = frame["rank"].to_numpy(), frame["parameter"].tolist()
    number = numbered(frame, ["rank", "step", "group"])
    known = np.zeros(len(frame))
    order = np.argsort(number, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        rank = int(ranks[rows[0]])
        seen, sent = holds.many.get(rank, frozenset()), float(elements[rows].sum())
        if count[rows].sum() == len(seen) and np.isfinite(sent):
            together = holds.of(rank, seen)
            known[rows] = elements[rows] * (together / sent) if together <= sent else np.inf
            continue
        for row in rows:
            names = names_in(texts[row])
            others = sorted(holds.of(rank, {name}) for name in seen - names)
            known[row] = holds.of(rank, names) + sum(others[: max(0, int(count[row]) - 1)])
    return known
