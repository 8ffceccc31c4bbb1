"""Which collectives of traces with different windows are one, told by when they ended.

Counts differ between such ranks, so order says nothing. What ended together, with the same op, dtype and
size, is one collective, provided that no other candidate ended near it. What is ambiguous stays open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.clocks import SYNCHRONISING, Clocks, estimate
from shardtoll.analyzers.match import Bools, Ints, Matches
from shardtoll.analyzers.tally import numbered
from shardtoll.analyzers.windows import shifted
from shardtoll.ledger import Run

TOLERANCE_NS: Final = 100_000
"""Ranks leave a collective within this, or within `PART` of it where that is more; candidates that lie
closer together are ambiguous."""

PART: Final = 0.01

LEAST_VOTES: Final = 3
CLEAR: Final = 1.5
"""By how much the best offset of a clock must beat the next best."""

MOST_ROWS: Final = 400
"""Of more rows of a rank, so many are compared to find the offset of its clock."""


def align(run: Run, frame: pd.DataFrame, matches: Matches, clocks: Clocks) -> Matches:
    """Return the matches with those added that end times tell; the same object where nothing is open.

    Matches by order that end times refute are opened first, and the clocks compared again without them.
    """
    if run.source == "trace" and (doubted := shifted(frame, matches)).any():
        matches = _opened(matches, doubted)
        clocks = estimate(run, frame, matches)
    rows = matches.rows
    timed = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    fit = rows["open"].to_numpy(dtype=bool) & timed & frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool)
    at = np.flatnonzero(fit)
    if len(at) == 0 or len(run.ranks_seen) < 2:
        return matches
    rank = frame["rank"].to_numpy(dtype=np.int64)[at]
    end = (frame["start_ns"] + frame["duration_ns"]).to_numpy(dtype=np.int64, na_value=0)[at]
    span = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0)[at]
    slack = np.maximum(TOLERANCE_NS, (span * PART).astype(np.int64))
    kinds = pd.DataFrame(
        {
            "group": rows["group_id"].to_numpy()[at],
            **{name: frame[name].to_numpy()[at] for name in ("op", "dtype", "message_bytes")},
        }
    )
    kind = numbered(kinds, list(kinds.columns))
    end, tied = _tied(rank, clocks.corrected(rank, end), kind, slack, clocks)
    found = rows.copy()
    # Both ends of a message have numbers beyond those of slots.
    next_id = int(rows[["slot_id", "match_id"]].max().fillna(-1).max()) + 1
    seen = set(run.ranks_seen)
    for group, places in pd.Series(np.arange(len(at))).groupby(kinds["group"].to_numpy(dtype=np.int64)):
        members = matches.members[int(str(group))]
        expected = len(seen.intersection(members))
        own = places.to_numpy()[tied[places.to_numpy()]]
        if expected < 2 or len(own) == 0:
            continue
        together = _together(kind[own], end[own], rank[own], slack[own], expected)
        sure = together >= 0
        where = at[own[sure]]
        found.loc[where, "match_id"] = together[sure] + next_id
        found.loc[where, "slot_id"] = together[sure] + next_id
        found.loc[where, "whole"] = expected == len(members)
        found.loc[where, ["likely", "by_order"]] = True
        found.loc[where, ["suspect", "open"]] = False
        next_id += int(together.max(initial=-1)) + 1
    return replace(matches, rows=found)


def _opened(matches: Matches, doubted: Bools) -> Matches:
    """Return the matches without those of the doubted rows, which are open again."""
    rows = matches.rows.copy()
    rows.loc[doubted, ["match_id", "slot_id"]] = pd.NA
    rows.loc[doubted, ["whole", "suspect", "likely"]] = False
    rows.loc[doubted, "open"] = True
    return replace(matches, rows=rows)


def _together(kind: Ints, end: Ints, rank: Ints, slack: Ints, expected: int) -> Ints:
    """Return for each row the number of its collective, -1 where that is not sure.

    Rows of one kind whose ends follow each other closely are one collective if they are one of each
    rank, and all within the tolerance.
    """
    order = np.lexsort((end, kind))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(kind[order]) != 0) | (np.diff(end[order]) > slack[order][1:])
    cluster = np.empty(len(order), dtype=np.int64)
    cluster[order] = np.cumsum(new) - 1
    rows = pd.DataFrame({"cluster": cluster, "end": end, "rank": rank, "slack": slack}).groupby("cluster")
    sound = (
        (rows["rank"].nunique() == expected)
        & (rows.size() == expected)
        & (rows["end"].max() - rows["end"].min() <= rows["slack"].min())
    ).to_numpy(dtype=bool)
    return np.where(sound[cluster], cluster, -1)


def _tied(rank: Ints, end: Ints, kind: Ints, slack: Ints, clocks: Clocks) -> tuple[Ints, Ints]:
    """Return ends on the first rank's clock, and for each row whether its clock could be tied to that.

    Clocks with a known offset, or shared with the first rank, need no more. Others are shifted by the
    offset at which most ends of the same kind fall together, if one is clearly best.
    """
    code = clocks.codes(rank)
    reference = code == code[0]
    end, tied = end.copy(), reference.copy()
    for other in np.unique(code[~reference]):
        own = code == other
        if clocks.clocks[other].offset_ns is not None:
            tied |= own
            continue
        first, other_rows = np.flatnonzero(reference)[:MOST_ROWS], np.flatnonzero(own)[:MOST_ROWS]
        same = kind[other_rows][:, None] == kind[first][None, :]
        apart = (end[other_rows][:, None] - end[first][None, :])[same]
        shift = _offset(apart, np.minimum(slack[other_rows][:, None], slack[first][None, :])[same])
        if shift is not None:
            end[own] -= shift
            tied |= own
    return end, tied


def _offset(apart: Ints, slack: Ints) -> int | None:
    """Return by how much the second clock is ahead of the first; None where no offset is clearly best.

    `apart` holds the distances of all pairs of one kind, each with its slack. No offset at all wins where
    it explains nearly as many pairs as the best: most hosts keep time, and of equally spaced collectives in
    windows that begin elsewhere an offset of one place explains the most.
    """
    if len(apart) < LEAST_VOTES:
        return None
    tried = np.append(apart, 0)
    low, high = np.sort(apart - slack), np.sort(apart + slack)
    votes = np.searchsorted(low, tried, "right") - np.searchsorted(high, tried, "left")
    if votes[-1] >= LEAST_VOTES and votes[-1] * CLEAR >= votes.max():
        return 0
    best = int(np.argmax(votes))
    far = np.abs(tried - tried[best]) > 2 * slack.max()
    rival = int(votes[far].max(initial=0))
    if votes[best] < LEAST_VOTES or votes[best] < CLEAR * rival:
        return None
    near = apart[np.abs(apart - tried[best]) <= slack]
    return int(np.median(near))
