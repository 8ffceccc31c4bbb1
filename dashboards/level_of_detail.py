"""The timeline of a run of any size: what lies in the time that is looked at, of as many ranks as fit.

A window that is small enough holds every collective of every rank; in one that is not, ranks are left out,
and it is said which are shown. The cost of a figure is that of `MOST_ROWS` collectives, not of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.row_codes import Ints
from shardtoll.ledger import Report

MOST_ROWS: Final = 150_000
"""Collectives that a figure is made of, drawn one by one or folded."""
LEAST_RANKS: Final = 4
"""Ranks that are shown however many collectives each has."""
_FEW: Final = 4
"""A finding on no more ranks than this is about those ranks."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What lies in a window."""

    report: Report
    """With the collectives and steps that touch the window, of the ranks shown; all else as it was."""
    notes: tuple[str, ...]
    """What was left out, in plain sentences."""


def window(
    report: Report,
    start_ns: int | None = None,
    end_ns: int | None = None,
    ranks: tuple[int, ...] = (),
    most: int = MOST_ROWS,
) -> Detail:
    """Return what touches the window, on those ranks (all where none is named), of about `most` rows.

    Collectives whose time is not known lie in no window. Where rows would be too many, ranks are left out:
    those that findings are about and those with the most exposed time stay.
    """
    collectives, steps = report.tables["collectives"], report.tables["steps"]
    tests = []
    if start_ns is not None and end_ns is not None:
        tests.append(_touching(collectives, start_ns, end_ns))
        steps = steps.filter(_touching(steps, start_ns, end_ns))
    if ranks:
        tests.append(pc.is_in(collectives["rank"], value_set=pa.array(ranks, pa.int64())))
    kept = collectives
    if tests:
        kept = collectives.filter(tests[0] if len(tests) == 1 else pc.and_(*tests))
    notes: tuple[str, ...] = ()
    if kept.num_rows > most:
        shown, known = _shown(report, kept, most)
        if len(shown) < known:
            kept = kept.filter(pc.is_in(kept["rank"], value_set=pa.array(shown, pa.int64())))
            notes = (
                f"{len(shown)} of {known:,} ranks are shown, as not all fit: those with the most exposed "
                "time and those that a finding is about. Zoom in to see more, or filter by rank to choose.",
            )
    if kept is not collectives:
        steps = steps.filter(pc.is_in(steps["rank"], value_set=pc.unique(kept["rank"])))
        # Lead-ups name collectives by their place among all of a rank: here they would name others.
        leadups = report.tables["leadups"].slice(0, 0)
        tables = {**report.tables, "collectives": kept, "steps": steps, "leadups": leadups}
        report = replace(report, tables=tables)
    return Detail(report, notes)


def _touching(table: pa.Table, start_ns: int, end_ns: int) -> pa.ChunkedArray:
    """Which rows last into the window; not those whose time is unknown."""
    ends = pc.add(table["start_ns"], table["duration_ns"])
    inside = pc.and_(pc.less_equal(table["start_ns"], end_ns), pc.greater_equal(ends, start_ns))
    return pc.fill_null(inside, False)


def _shown(report: Report, rows: pa.Table, most: int) -> tuple[list[int], int]:
    """The ranks to show, ascending, and how many there are."""
    counted = rows.group_by("rank").aggregate([("rank", "count"), ("exposed_ns", "sum")])
    ranks: Ints = counted["rank"].to_numpy()
    exposed: Ints = pc.fill_null(counted["exposed_ns_sum"], 0).to_numpy()
    room = max(LEAST_RANKS, most * len(ranks) // rows.num_rows)
    if room >= len(ranks):
        return ranks.tolist(), len(ranks)
    there = set(ranks.tolist())
    about = [rank for found in report.findings if len(found.ranks) <= _FEW for rank in found.ranks]
    chosen = [rank for rank in dict.fromkeys(about) if rank in there][: room // 2]
    dearest = ranks[np.lexsort((ranks, -exposed))].tolist()
    return sorted([*dict.fromkeys([*chosen, *dearest])][:room]), len(ranks)
