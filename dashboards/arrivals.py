"""Which rank came last to each collective, all of whose ranks are on record with what they waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.match_ids import PEER_OPS, match_ids
from shardtoll.dashboards.row_codes import NONE, Ints, ints
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps

LEAST_LATE_NS: Final = 10_000
"""A rank that comes less than this after the one before it is not late: somebody is always last."""

_FARTHEST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Collectives that all ranks of their group recorded, each with a known wait."""

    rows: Ints
    """Their rows of the collectives' table, those of one collective together."""
    first: Ints
    """Where each collective begins in `rows`."""
    last: Ints
    """For each collective the rank that waited least; -1 where it came with the one before it."""
    late_ns: Ints
    """By how much that rank came after the one before it, whether or not that makes it late."""

    @property
    def count(self) -> Ints:
        """Rows of each collective: the size of its group."""
        return np.diff(self.first, append=len(self.rows))


def arrivals(report: Report, needed: tuple[str, ...] = ()) -> Arrivals:
    """Return who came last to what; collectives of which a rank's `needed` is unknown are left out.

    So are messages between two ranks and, where there are others, steps that some ranks surveyed and others
    watched: they wait for capture.
    """
    table = report.tables["collectives"]
    number = match_ids(report)
    usable = number != NONE
    for name in ("wait_ns", "transfer_ns", *needed):
        usable &= table.column(name).is_valid().to_numpy()
    usable &= ~pc.is_in(table.column("op"), pa.array(PEER_OPS)).to_numpy()
    steps = report.tables["steps"]
    uneven = sorted(set(steps.column("step").to_pylist()) - set(alike_steps(steps)))
    if uneven:
        usable &= ~np.isin(ints(table.column("step"), NONE), uneven)
    size = ints(table.column("group_size"))
    usable &= np.bincount(number[usable], minlength=int(number.max(initial=0)) + 1)[number] == size
    return _arrivals(table, np.flatnonzero(usable), number)


def _arrivals(table: pa.Table, rows: Ints, number: Ints) -> Arrivals:
    rows = rows[np.argsort(number[rows], kind="stable")]
    first = np.flatnonzero(np.diff(number[rows], prepend=NONE)).astype(np.int64)
    if not len(rows):
        return Arrivals(rows, first, first, first)
    wait = ints(table.column("wait_ns"))[rows]
    least = np.minimum.reduceat(wait, first)
    of = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    at = np.flatnonzero(wait == least[of])
    # Each has one that waited least, and two ranks or more: without it the least wait is the next one's.
    at = at[np.flatnonzero(np.diff(of[at], prepend=NONE))]
    wait[at] = _FARTHEST
    late = np.minimum.reduceat(wait, first) - least
    rank = ints(table.column("rank"))[rows[at]]
    return Arrivals(rows, first, np.where(late >= LEAST_LATE_NS, rank, NONE), late)
