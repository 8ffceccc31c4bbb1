"""Whether what order matched in a trace was matched with its neighbour, as its window begins elsewhere.

Two ranks may lack as many collectives, one at the start of its window and one at the end. Their order
then agrees, and their clocks seem to be off by a whole number of collectives.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.clocks import LEAST_NS, SYNCHRONISING
from shardtoll.analyzers.match import Bools, Ints, Matches

LEAST: Final = 2
"""Of fewer collectives that end together, chance is as good an explanation."""

MOST_OF_THEM: Final = 0.9
PART_OF_GAP: Final = 0.125
"""Ends agree by chance where collectives follow each other closely: the tolerance is at most this part of
the usual gap."""


def shifted(frame: pd.DataFrame, matches: Matches) -> Bools:
    """Return for each row whether order matched it although ends say that the windows are shifted.

    Such are all rows of a group and step that go by order, where two ranks' ends differ by more than
    100 us, but agree once the one's collectives are compared with the other's a few places on.
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
    found: Bools = ordered & np.asarray(place.isin(wrong), dtype=bool)
    return found


def _any(rows: pd.DataFrame) -> bool:
    """Return whether a rank of this group and step is shifted against the first one."""
    sizes = rows.groupby("rank").size()
    count = int(sizes.iloc[0])
    if count <= LEAST or len(sizes) < 2 or (sizes != count).any():
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
        and len(late) - shift >= LEAST
        and _agree(early[shift:], late[: len(late) - shift], slack)
        and _alike(kinds, shift)
        for early, late, shift in ((first, other, on), (other, first, back))
    )


def _agree(one: Ints, two: Ints, slack: int) -> bool:
    return float((np.abs(one - two) <= slack).mean()) >= MOST_OF_THEM


def _alike(kinds: Ints, shift: int) -> bool:
    return bool((kinds[shift:] == kinds[: len(kinds) - shift]).all())
