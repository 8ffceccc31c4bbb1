"""Matches collectives of traces with different windows by the times at which they ended.

Counts differ between such ranks, so order says nothing. Rows that ended together, with the same op, dtype and
size, are one collective if no other candidate ended near it. Ambiguous rows are matched by their order among
those (`complete`), or stay open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.clocks import LEAST_NS, Clocks, estimate
from shardtoll.analyzers.context.complete import completed
from shardtoll.analyzers.context.match import Bools, Ints, Matches
from shardtoll.analyzers.context.peers import SYNCHRONISING
from shardtoll.analyzers.shared.tally import numbered
from shardtoll.ledger import Run

TOLERANCE_NS: Final = 100_000
"""Ranks leave a collective within this, or within `PART` of it if that is more; candidates that lie closer
together are ambiguous."""

PART: Final = 0.01

LEAST_VOTES: Final = 3
CLEAR: Final = 1.5
"""By how much the best offset of a clock must beat the next best."""

MOST_ROWS: Final = 400
"""Rows per rank that are compared, at most, to find the offset of its clock."""

LEAST_SHIFTED: Final = 2
"""If fewer collectives end together, chance is as good an explanation."""

MOST_OF_THEM: Final = 0.9
PART_OF_GAP: Final = 0.125
"""Ends agree by chance if collectives follow each other closely: the tolerance is at most this part of the
usual gap."""


def align(run: Run, frame: pd.DataFrame, matches: Matches, clocks: Clocks) -> Matches:
    """Return the matches with those added that end times tell; the same object if nothing is open.

    Matches by order that end times refute are opened first, and the clocks compared again without them.
    """
    if run.source == "trace" and (doubted := shifted(frame, matches)).any():
        matches = _opened(matches, doubted)
        clocks = estimate(run, frame, matches)
    rows = matches.rows
    timed = (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    fit = rows["open"].to_numpy(dtype=bool) & timed & frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool)
    open_rows = np.flatnonzero(fit)
    if len(open_rows) == 0 or len(run.ranks_seen) < 2:
        return matches
    rank = frame["rank"].to_numpy(dtype=np.int64)[open_rows]
    end = (frame["start_ns"] + frame["duration_ns"]).to_numpy(dtype=np.int64, na_value=0)[open_rows]
    span = frame["duration_ns"].to_numpy(dtype=np.int64, na_value=0)[open_rows]
    slack = np.maximum(TOLERANCE_NS, (span * PART).astype(np.int64))
    kinds = pd.DataFrame(
        {
            "group": rows["group_id"].to_numpy()[open_rows],
            **{name: frame[name].to_numpy()[open_rows] for name in ("op", "dtype", "message_bytes")},
        }
    )
    kind = numbered(kinds, list(kinds.columns))
    end, tied = _tied(rank, clocks.corrected(rank, end), kind, slack, clocks)
    aligned = rows.copy()
    # Both ends of a message have numbers beyond those of slots.
    next_id = int(rows[["slot_id", "match_id"]].max().fillna(-1).max()) + 1
    seen = set(run.ranks_seen)
    for group, places in pd.Series(np.arange(len(open_rows))).groupby(
        kinds["group"].to_numpy(dtype=np.int64)
    ):
        members = matches.members[int(str(group))]
        expected = len(seen.intersection(members))
        group_rows = places.to_numpy()[tied[places.to_numpy()]]
        if expected < 2 or len(group_rows) == 0:
            continue
        together = _together(kind[group_rows], end[group_rows], rank[group_rows], slack[group_rows], expected)
        sure = together >= 0
        where = open_rows[group_rows[sure]]
        aligned.loc[where, "match_id"] = together[sure] + next_id
        aligned.loc[where, "slot_id"] = together[sure] + next_id
        aligned.loc[where, "whole"] = expected == len(members)
        aligned.loc[where, ["likely", "by_order"]] = True
        aligned.loc[where, ["suspect", "open"]] = False
        next_id += int(together.max(initial=-1)) + 1
    added = _completed(run, frame, replace(matches, rows=aligned))
    if added:
        sizes = [len(each) for each in added]
        where = np.array([row for each in added for row in each], dtype=np.int64)
        groups = aligned["group_id"].to_numpy(dtype=np.int64, na_value=-1)[where]
        number = np.repeat(np.arange(len(added)), sizes) + next_id
        aligned.loc[where, "match_id"] = number
        aligned.loc[where, "slot_id"] = number
        aligned.loc[where, "whole"] = np.repeat(sizes, sizes) == [len(matches.members[g]) for g in groups]
        aligned.loc[where, ["likely", "by_order"]] = True
        aligned.loc[where, ["suspect", "open"]] = False
    return replace(matches, rows=aligned)


def _completed(run: Run, frame: pd.DataFrame, matches: Matches) -> list[list[int]]:
    """Return what order adds to the matches, each as its rows; their times are on the clocks of those."""
    clocks = estimate(run, frame, matches)
    rank = frame["rank"].to_numpy(dtype=np.int64)
    start = clocks.corrected(rank, frame["start_ns"].to_numpy(dtype=np.int64, na_value=0))
    return completed(run, frame, matches.rows, start)


def _opened(matches: Matches, doubted: Bools) -> Matches:
    """Return the matches without those of the doubted rows, which are open again."""
    rows = matches.rows.copy()
    rows.loc[doubted, ["match_id", "slot_id"]] = pd.NA
    rows.loc[doubted, ["whole", "suspect", "likely"]] = False
    rows.loc[doubted, "open"] = True
    return replace(matches, rows=rows)


def _together(kind: Ints, end: Ints, rank: Ints, slack: Ints, expected: int) -> Ints:
    """Return for each row the number of its collective, -1 if that is not sure.

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
        of_clock = code == other
        if clocks.clocks[other].offset_ns is not None:
            tied |= of_clock
            continue
        first, other_rows = np.flatnonzero(reference)[:MOST_ROWS], np.flatnonzero(of_clock)[:MOST_ROWS]
        same = kind[other_rows][:, None] == kind[first][None, :]
        apart = (end[other_rows][:, None] - end[first][None, :])[same]
        shift = _offset(apart, np.minimum(slack[other_rows][:, None], slack[first][None, :])[same])
        if shift is not None:
            end[of_clock] -= shift
            tied |= of_clock
    return end, tied


def _offset(apart: Ints, slack: Ints) -> int | None:
    """Return by how much the second clock is ahead of the first; None if no offset is clearly best.

    `apart` holds the distances of all pairs of one kind, each with its slack. No offset at all wins if it
    explains nearly as many pairs as the best. Most hosts keep time, and of equally spaced collectives in
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


def shifted(frame: pd.DataFrame, matches: Matches) -> Bools:
    """Return for each row whether order matched it although ends say that the windows are shifted.

    Two ranks may miss the same number of collectives, one at the start of its window and one at the end.
    Their order then agrees, and their clocks seem to be off by a whole number of collectives.

    Returned are the rows of a group and step that go by order, if two ranks' ends differ by more than 100 us.
    The ends must also agree if the one rank's collectives are compared with the other's a few places on.
    """
    marks = matches.rows
    placed = (marks["by_order"] & marks["group_id"].notna() & frame["step"].notna()).to_numpy(dtype=bool)
    ordered = placed & marks["match_id"].notna().to_numpy(dtype=bool)
    fit = (
        ordered
        & frame["op"].isin(SYNCHRONISING).to_numpy(dtype=bool)
        & (frame["start_ns"].notna() & frame["duration_ns"].notna()).to_numpy(dtype=bool)
    )
    doubted = np.zeros(len(frame), dtype=bool)
    if not fit.any():
        return doubted
    rows = pd.DataFrame(
        {
            "group": marks["group_id"].to_numpy(dtype=np.int64, na_value=-1)[fit],
            "step": frame["step"].to_numpy(dtype=np.int64, na_value=-1)[fit],
            "match": marks["match_id"].to_numpy(dtype=np.int64, na_value=-1)[fit],
            "rank": frame["rank"].to_numpy(dtype=np.int64)[fit],
            "end": (frame["start_ns"] + frame["duration_ns"]).to_numpy(dtype=np.int64, na_value=0)[fit],
            "kind": frame[["op", "dtype", "message_bytes"]][fit]
            .groupby(["op", "dtype", "message_bytes"], dropna=False)
            .ngroup()
            .to_numpy(dtype=np.int64),
        }
    ).sort_values(["group", "step", "rank", "match"], kind="stable")
    wrong = [place for place, of_step in rows.groupby(["group", "step"], sort=False) if _any(of_step)]
    if not wrong:
        return doubted
    place = pd.MultiIndex.from_arrays([marks["group_id"], frame["step"]])
    moved: Bools = ordered & np.asarray(place.isin(wrong), dtype=bool)
    return moved


def _any(rows: pd.DataFrame) -> bool:
    """Return whether a rank of this group and step is shifted against the first one."""
    sizes = rows.groupby("rank").size()
    count = int(sizes.iloc[0])
    if count <= LEAST_SHIFTED or len(sizes) < 2 or (sizes != count).any():
        return False
    ends = rows["end"].to_numpy(dtype=np.int64).reshape(len(sizes), count)
    kinds = rows["kind"].to_numpy(dtype=np.int64).reshape(len(sizes), count)[0]
    order = np.argsort(ends[0], kind="stable")
    first, kinds = ends[0][order], kinds[order]
    return any(_explained(first, other[order], kinds) for other in ends[1:])


def _explained(first: Ints, other: Ints, kinds: Ints) -> bool:
    """Return whether a shift explains these ends, and taking them in order does not."""
    if np.median(np.abs(other - first)) <= LEAST_NS:
        return False
    slack = min(LEAST_NS, int(np.median(np.diff(first)) * PART_OF_GAP))
    on, back = int(np.abs(first - other[0]).argmin()), int(np.abs(other - first[0]).argmin())
    return any(
        shift
        and len(late) - shift >= LEAST_SHIFTED
        and _agree(early[shift:], late[: len(late) - shift], slack)
        and _alike(kinds, shift)
        for early, late, shift in ((first, other, on), (other, first, back))
    )


def _agree(early: Ints, late: Ints, slack: int) -> bool:
    return float((np.abs(early - late) <= slack).mean()) >= MOST_OF_THEM


def _alike(kinds: Ints, shift: int) -> bool:
    return bool((kinds[shift:] == kinds[: len(kinds) - shift]).all())
