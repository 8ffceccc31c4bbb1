"""Rooted operations (broadcast, scatter, reduce, gather): who waits for whom, and how long the whole takes.

Data leaves the root of a broadcast or scatter, and comes to the root of a reduce or gather. So a receiver
waits for the root alone, and a root that receives waits for all. The backend decides whether a sender waits.
On gloo it waits until its receivers have come (see `held`). NCCL's kernel on a sending rank ends when its
data is handed over. If the message is larger than the buffers of its channels, that may last until the next
rank has come (back pressure). No record tells that apart from moving data, so there it counts as moving.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.held import pairs, until
from shardtoll.analyzers.context.match import OVERLAP_NS
from shardtoll.analyzers.context.peers import ROOTED
from shardtoll.analyzers.context.reduces import of_reduces

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FROM_ROOT: Final = ("broadcast", "scatter")
"""Operations whose data leaves the root; the other rooted ones bring it there."""

NEVER: Final = np.iinfo(np.int64).min


class Rooted(Struct, frozen=True):
    """By row of the collectives: what its root tells. All but the first two hold only if `known`."""

    rows: Bools
    """Whether the row is of a rooted operation."""
    known: Bools
    """Whether root and times of all its ranks are known, and do not contradict each other."""
    release_ns: Ints
    """From when on the rank is not waiting: the start of whom it waits for, else its own."""
    awaited_rank: Ints
    """The rank that the others of the operation waited for: the root, or the last to come. On gloo the last
    one that held somebody up."""
    awaited_ns: Ints
    """When that rank came."""
    late_ns: Ints
    """How long that was after the rank before it; 0: nobody waited."""
    whole_ns: Ints
    """From when all was there that has to move (the root of a broadcast, the last sender) to the last end. On
    gloo the longest that a rank took once it waited no more."""


def rooted(frame: pd.DataFrame, match: Ints, start: Ints, span: Ints, usable: Bools, place: Ints) -> Rooted:
    """Return what rooted operations tell; `match` numbers operations from 0, -1 for unmatched rows.

    `usable`: rows whose ranks were all seen, with times on clocks that can be compared. `place`: on gloo, how
    many places after its root a rank stands (see `held`); else -1.
    """
    rows = frame["op"].isin(ROOTED).to_numpy(dtype=bool)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    count = len(rank)
    known = np.zeros(count, dtype=bool)
    release, awaited_ns = start.copy(), start.copy()
    awaited_rank, late, whole = rank.copy(), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    here = np.flatnonzero(rows & usable & (match >= 0) & frame["root"].notna().to_numpy(dtype=bool))
    if not len(here):
        return Rooted(rows, known, release, awaited_rank, awaited_ns, late, whole)
    root = frame["root"].iloc[here].to_numpy(dtype=np.int64)
    of = pd.DataFrame(
        {
            "match": match[here],
            "rank": rank[here],
            "root": root,
            "start": start[here],
            "end": (start + span)[here],
            "is_root": rank[here] == root,
            "from_root": frame["op"].iloc[here].isin(FROM_ROOT).to_numpy(dtype=bool),
        }
    )
    by = of.groupby("match")
    of["root_start"] = of["start"].where(of["is_root"], NEVER).groupby(of["match"]).transform("max")
    of["last"] = by["start"].transform("max")
    of["needed"] = of["root_start"].where(of["from_root"], of["last"])
    needs = of["from_root"] != of["is_root"]
    one_root = (by["root"].transform("nunique") == 1) & (by["is_root"].transform("sum") == 1)
    # Nobody has the result before the one was there that it needs: such a record, or clock, is wrong.
    possible = (~needs | (of["end"] >= of["needed"])).groupby(of["match"]).transform("all")
    known[here] = (one_root & possible).to_numpy(dtype=bool)
    held_until, by_row = _held(frame, match, place, here, of)
    of["release"] = np.maximum(
        np.where(needs, np.maximum(of["start"], of["needed"]), of["start"]), held_until
    )
    release[here] = of["release"]
    # Who holds a sender up may come after the one whose data is needed.
    of["holds"] = np.where(held_until > of["start"], held_until, NEVER)
    of["holder"] = np.where(held_until > of["start"], of["rank"].to_numpy()[by_row], -1)
    held_last = of["holds"].groupby(of["match"]).transform("max")
    holder = of["holder"].where(of["holds"] == held_last, -1).groupby(of["match"]).transform("max")
    is_held = held_last > of["needed"]
    of["awaited"] = of["needed"].where(~is_held, held_last)
    awaited_ns[here] = of["awaited"]
    last_rank = of["rank"].where(of["start"] == of["last"], -1).groupby(of["match"]).transform("max")
    awaited_rank[here] = np.where(is_held, holder, np.where(of["from_root"], of["root"], last_rank))
    before = of["start"].where(of["start"] < of["awaited"], NEVER).groupby(of["match"]).transform("max")
    somebody = (of["release"] > of["start"]).groupby(of["match"]).transform("any")
    late[here] = np.where(somebody, of["awaited"] - before, 0)
    longest = (of["end"] - of["release"]).groupby(of["match"]).transform("max")
    since_needed = by["end"].transform("max") - of["needed"]
    whole[here] = np.maximum(0, np.where(place[here] >= 0, longest, since_needed))
    return Rooted(rows, known, release, awaited_rank, awaited_ns, late, whole)


def _held(frame: pd.DataFrame, match: Ints, place: Ints, here: Ints, of: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return until when each of the rows `here` was held up on gloo, and by which of them."""
    op = frame["op"].iloc[here].to_numpy(dtype=object)
    start, end = of["start"].to_numpy(dtype=np.int64), of["end"].to_numpy(dtype=np.int64)
    waiter, awaited = pairs(op, match[here], place[here])
    arrivals = of_reduces(op, match[here], place[here], (start, end), OVERLAP_NS)
    # A rank of a reduce waits for several others: the last one counts.
    waiter = np.concatenate([waiter, arrivals.row])
    awaited = np.concatenate([awaited, arrivals.row[arrivals.cut]])
    return until((waiter, awaited), start, end)
