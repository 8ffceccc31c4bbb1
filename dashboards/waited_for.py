"""For how long the other ranks waited for each rank in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardtoll.dashboards.arrivals import arrivals
from shardtoll.dashboards.row_codes import NONE, Ints, equal_rows, ints
from shardtoll.ledger import Report
from shardtoll.ledger.levels import surveyed_steps

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """A number for each rank (row) and step (column); NaN inside is unknown and never leaves a renderer."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    ns: Floats
    waits: bool
    """Whether the numbers are waiting for the rank; else what it computes beyond the median rank."""


def waited_for(report: Report) -> Grid | None:
    """Return for each rank and step the exposed waiting for it, on the rank that waits most in that step.

    Of every matched collective to which one rank came last, 10 us or more after the one before it, the
    others' exposed waiting (what is exposed beyond the transfer, as the straggler analysis counts it) goes to
    that rank. A rank that took part in collectives and was never waited for has 0; one without a matched
    collective in the step is unknown. None where nothing is matched.
    """
    found = arrivals(report, ("step", "exposed_ns"))
    if not len(found.rows):
        return None
    table = report.tables["collectives"]
    exposed, transfer, rank, step = (
        ints(table.column(name))[found.rows] for name in ("exposed_ns", "transfer_ns", "rank", "step")
    )
    late = np.repeat(found.last, found.count)
    ranks = np.array(sorted(report.run.ranks_seen), dtype=np.int64)
    finished = np.unique(ints(report.tables["steps"].column("step")))
    steps = finished if len(finished) else np.unique(step)
    ns = np.full((len(ranks), len(steps)), np.nan)
    row, column, late_row = _places(ranks, rank), _places(steps, step), _places(ranks, late)
    here = (row >= 0) & (column >= 0)
    ns[row[here], column[here]] = 0
    counts = (late != NONE) & (late != rank) & (late_row >= 0) & (column >= 0)
    waiter = equal_rows(late_row[counts], column[counts], rank[counts])
    sums = np.zeros(int(waiter.max(initial=NONE)) + 1)
    np.add.at(sums, waiter, np.maximum(exposed[counts] - transfer[counts], 0))
    np.fmax.at(ns, (late_row[counts], column[counts]), sums[waiter])
    return Grid(tuple(ranks.tolist()), tuple(steps.tolist()), ns, waits=True)


def _places(known: Ints, values: Ints) -> Ints:
    """Return where each value stands among the known ones, which are sorted; -1 where it does not."""
    at = np.minimum(np.searchsorted(known, values), max(0, len(known) - 1))
    found: Ints = np.where(known[at] == values, at, NONE) if len(known) else np.full(len(values), NONE)
    return found


def computed_beyond(report: Report) -> Grid | None:
    """Return for each rank and surveyed step the compute beyond the median rank's; None without any.

    For jobs that have no matched collectives: those tell less of who is late.
    """
    steps = surveyed_steps(report.tables["steps"])
    frame = report.steps
    frame = frame[frame["step"].isin(steps)]
    ranks = tuple(sorted(int(rank) for rank in frame["rank"].unique()))
    if len(ranks) < 2:
        return None
    wide = frame.astype({"compute_ns": "float64"}).pivot_table(
        index="rank", columns="step", values="compute_ns", aggfunc="first"
    )
    numbers = wide.to_numpy(dtype=np.float64)
    if not (numbers > 0).any():
        return None
    beyond = np.maximum(numbers - np.nanmedian(numbers, axis=0), 0)
    return Grid(
        tuple(int(rank) for rank in wide.index),
        tuple(int(step) for step in wide.columns),
        beyond,
        waits=False,
    )
