"""Rooted operations on gloo in the graph of a step: there each rank waits for some others, and not for all.

A rendezvous has one set of ranks for which all wait. Here each waiting row gets a number of its own, and
several rows feed it: see `held.pairs`. A reduce is one rendezvous, with one more for each set of ranks for
which some waited who left early.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.held import pairs
from shardtoll.analyzers.context.reduces import Arrivals, of_reduces

Ints = npt.NDArray[np.int64]

SLACK_NS: Final = 100_000
"""A rank that left earlier than this before another arrived did not wait for it."""


class Dependencies(Struct, frozen=True):
    """Who waits for whom, by row of a step's collectives."""

    match: Ints
    """Number of the collective for whose arrivals it waits; -1 if it waits for none."""
    feeds: Ints
    """Number of the collective in which others wait for its arrival; -1 if none do."""
    moved_ns: Ints
    """How long it takes from the last arrival on that it waits for."""
    fed_by: Ints
    """More rows that feed a number: one row may feed several."""
    fed: Ints
    """The numbers that these feed."""


def with_held(
    rows: pd.DataFrame, start: Ints, end: Ints, match: Ints, feeds: Ints, moved: Ints
) -> Dependencies:
    """Return the dependencies with those of rooted operations on gloo in place of what they had."""
    place = rows["root_place"].to_numpy(dtype=np.int64)
    place = np.where(rows["wait_ns"].notna().to_numpy(dtype=bool), place, -1)
    is_held = place >= 0
    none = np.zeros(0, dtype=np.int64)
    if not is_held.any():
        return Dependencies(match, feeds, moved, none, none)
    number = pd.factorize(rows["match_id"].to_numpy(dtype=np.int64, na_value=-1), use_na_sentinel=False)[0]
    number = np.where(rows["match_id"].notna().to_numpy(dtype=bool), number, -1)
    number, op = number.astype(np.int64), rows["op"].to_numpy(dtype=object)
    waiter, awaited = pairs(op, number, place)
    stood = end[waiter] + SLACK_NS >= start[awaited]
    waiter, awaited = waiter[stood], awaited[stood]
    beyond = int(max(match.max(initial=-1), feeds.max(initial=-1))) + 1
    which, nth = np.unique(waiter, return_inverse=True)
    match, feeds, moved = match.copy(), feeds.copy(), moved.copy()
    match[is_held] = feeds[is_held] = -1
    match[which] = beyond + np.arange(len(which))
    since = start.copy()
    np.maximum.at(since, waiter, start[awaited])
    arrivals = of_reduces(op, number, place, (start, end), SLACK_NS)
    since[arrivals.row] = np.maximum(start[arrivals.row], start[arrivals.row[arrivals.cut]])
    moved[is_held] = np.maximum(0, end - since)[is_held]
    fed_by, fed = _meet(arrivals, beyond + len(which), match, feeds)
    fed_by, fed = np.concatenate([awaited, fed_by]), np.concatenate([beyond + nth, fed])
    return Dependencies(match, feeds, moved, fed_by, fed.astype(np.int64))


def _meet(arrivals: Arrivals, beyond: int, match: Ints, feeds: Ints) -> tuple[Ints, Ints]:
    """Let the rows of reduces wait and feed; return the rows that feed further numbers, and these."""
    row, first, cut = arrivals.row, arrivals.first, arrivals.cut
    # Who left before any other came waits for nobody. Numbers go by the last arrival that counts.
    waits = cut > first
    match[row[waits]] = beyond + cut[waits]
    several = arrivals.last > first
    feeds[row[several]] = np.where(waits, beyond + cut, beyond + arrivals.last)[several]
    cuts, at = np.unique(cut[waits], return_index=True)
    begins = first[waits][at]
    counts = cuts - begins + 1
    # All places from the first to each cut, but for those that feed it already.
    place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts - begins, counts)
    fed_by, fed = row[place], beyond + np.repeat(cuts, counts)
    more = feeds[fed_by] != fed
    return fed_by[more], fed[more]


def fed_numbers(feeds: Ints, fed_by: Ints, fed: Ints) -> list[list[int]]:
    """Return all the numbers that each row feeds."""
    numbers: list[list[int]] = [[] if number < 0 else [number] for number in feeds.tolist()]
    for row, number in zip(fed_by.tolist(), fed.tolist(), strict=True):
        numbers[row].append(number)
    return numbers
