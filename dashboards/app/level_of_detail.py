"""The timeline of a run of any size: the content of the visible time, for as many ranks as fit.

A window that is small enough holds every collective of every rank. In a larger one ranks are left out, and a
note says which are shown. The cost of a figure is that of `MOST_ROWS` collectives, not of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts.row_codes import Bools, Ints
from shardtoll.dashboards.facts.spoken import left
from shardtoll.ledger import Report

MOST_ROWS: Final = 150_000
"""Collectives that a figure is made of, drawn one by one or folded."""
LEAST_RANKS: Final = 4
"""Ranks that are shown however many collectives each has."""
_FEW: Final = 4
"""A finding on no more ranks than this is about those ranks."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The content of a window."""

    report: Report
    """With the collectives and steps that touch the window, of the ranks shown; all else as it was."""
    notes: tuple[str, ...]
    """Parts that were left out, in plain sentences."""


def window(
    report: Report,
    start_ns: int | None = None,
    end_ns: int | None = None,
    ranks: tuple[int, ...] = (),
    most: int = MOST_ROWS,
) -> Detail:
    """Return what touches the window, on those ranks (all if none is named), of about `most` rows.

    Collectives whose time is not known lie in no window. If there would be too many rows, ranks are left out.
    Ranks that findings are about and those with the most exposed time stay.
    """
    collectives, steps = report.tables["collectives"], report.tables["steps"]
    stays = np.ones(collectives.num_rows, dtype=bool)
    steps_stay = np.ones(steps.num_rows, dtype=bool)
    if start_ns is not None and end_ns is not None:
        stays &= _touching(collectives, start_ns, end_ns)
        steps_stay &= _touching(steps, start_ns, end_ns)
    if ranks:
        stays &= _on(collectives, ranks)
    notes: tuple[str, ...] = ()
    if int(stays.sum()) > most:
        shown, there = _shown(report, collectives.filter(pa.array(stays)), most)
        if len(shown) < there:
            stays &= _on(collectives, shown)
            notes = (
                f"{len(shown)} of {there:,} ranks are shown, as not all fit. They have the most exposed "
                "time, or a finding is about them. Zoom in to see more, or filter by rank to choose.",
            )
    if ranks or notes or (start_ns is not None and end_ns is not None):
        kept = collectives.filter(pa.array(stays))
        steps_stay &= _on(steps, pc.unique(kept["rank"]).to_pylist())
        # Lead-ups name collectives by their place among all of a rank: here they would name others.
        leadups = report.tables["leadups"].slice(0, 0)
        tables = {**report.tables, "collectives": kept, "leadups": leadups}
        tables["steps"] = steps.filter(pa.array(steps_stay))
        findings = left(report.findings, {"collectives": stays, "steps": steps_stay})
        report = replace(report, tables=tables, findings=findings)
    return Detail(report, notes)


def _touching(table: pa.Table, start_ns: int, end_ns: int) -> Bools:
    """Which rows last into the window; not those whose time is unknown."""
    ends = pc.add(table["start_ns"], table["duration_ns"])
    inside = pc.and_(pc.less_equal(table["start_ns"], end_ns), pc.greater_equal(ends, start_ns))
    touching: Bools = pc.fill_null(inside, False).to_numpy()
    return touching


def _on(table: pa.Table, ranks: Sequence[int]) -> Bools:
    """Which rows are of these ranks."""
    of_ranks: Bools = pc.is_in(table["rank"], value_set=pa.array(ranks, pa.int64())).to_numpy()
    return of_ranks


def _shown(report: Report, rows: pa.Table, most: int) -> tuple[list[int], int]:
    """The ranks to show, ascending, and how many there are."""
    counted = rows.group_by("rank").aggregate([("rank", "count"), ("exposed_ns", "sum")])
    ranks: Ints = counted["rank"].to_numpy()
    exposed: Ints = pc.fill_null(counted["exposed_ns_sum"], 0).to_numpy()
    room = max(LEAST_RANKS, most * len(ranks) // rows.num_rows)
    if room >= len(ranks):
        return ranks.tolist(), len(ranks)
    there = set(ranks.tolist())
    about = [rank for finding in report.findings if len(finding.ranks) <= _FEW for rank in finding.ranks]
    chosen = [rank for rank in dict.fromkeys(about) if rank in there][: room // 2]
    dearest = ranks[np.lexsort((ranks, -exposed))].tolist()
    return sorted([*dict.fromkeys([*chosen, *dearest])][:room]), len(ranks)
