"""Who is billed for waiting: origins of lateness, ranks that are late by habit, and turns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.habits import expert_imbalance
from shardtoll.analyzers.findings.origins.origin import Origin, caused_ns, origins
from shardtoll.analyzers.findings.stragglers.late_asleep import slept_late
from shardtoll.analyzers.findings.stragglers.lateness import late_to, waits
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.tally import Line, keep, tally, with_columns

LEAST_SHARE: Final = 0.01
"""Share of the step that the waiting must cost."""

MOST_OF_IT: Final = 0.5
"""A rank is named if the others' waiting for it is at least this part of all waiting. It must also be 1.5
times what it would be if ranks took turns. With two ranks each is last half the time."""


def named(context: Context, rows: pd.DataFrame) -> list[int]:
    """Return the ranks that are late by habit, not by turns; `rows` as `lateness.waits` gives them.

    Only steps that the bars show, if anybody waits in them. Work of another rank in surveyed steps alone, as
    to set things up, costs nothing there.
    """
    shown = context.shown(rows)
    once = late_to(shown if shown["waited_ns"].sum() > 0 else rows)
    once = keep(once, once["late_ns"] >= LEAST_LATE_NS)
    by_rank = once.groupby("late_rank")["waited_ns"].sum()
    if by_rank.sum() <= 0:
        return []
    ranks_there = max(2, len(rows["rank"].unique()))
    share = by_rank / by_rank.sum()
    return [int(rank) for rank in share.index[share >= max(MOST_OF_IT, 1.5 / ranks_there)]]


class Bill(Struct, frozen=True):
    """The waiting that one finding bills."""

    rank: int | None
    """The late rank; None if ranks take turns."""
    rows: pd.DataFrame
    line: Line
    origin: Origin | None = None
    """If lateness travels from rank to rank: where it began, at `rank`."""


@once
def bills(context: Context) -> tuple[pd.DataFrame, list[Bill]]:
    """Return all waits, and the bills large enough for a finding; each instant of waiting is in one of them.

    First come the ranks at which lateness begins, with all that they cause, in messages too. Then comes the
    rank that is last in the remaining waits. If ranks share cores, only those that slept while others waited
    for them are billed. All other waiting stays on the bill of the collective it belongs to.
    """
    rows = waits(context)
    # `implicit-redistribute` bills its collectives whole, their waiting too.
    rows = _without_experts(context, keep(rows, ~hidden(rows)))
    if not context.step_ns:
        return rows, []
    shared = crowded(context) is not None
    dear = [] if shared else _of_origins(context)
    if rows.empty:
        return rows, dear
    caused = caused_ns(context).reindex(rows.index, fill_value=0).to_numpy(dtype=np.int64)
    rows = with_columns(rows, waited_ns=np.maximum(rows["waited_ns"].to_numpy(dtype=np.int64) - caused, 0))
    rows = with_columns(rows, saved_ns=np.minimum(rows["waited_ns"], rows["late_ns"]), all=0)
    culprits = named(context, rows)
    of_culprits = rows["late_rank"].isin(culprits) & (rows["late_ns"] >= LEAST_LATE_NS)
    parts = [(rank, keep(rows, of_culprits & (rows["late_rank"] == rank))) for rank in culprits]
    for rank, part in (*parts, (None, keep(rows, ~of_culprits))):
        # Who is late and why is read off surveyed steps too; what it costs, off the steps that the bars show.
        for line in tally(context.shown(part), ("all",), ("waited_ns", "saved_ns"), context.timed).lines:
            waited_ns = line.figures["waited_ns"] or 0
            if shared and (rank is None or not slept_late(context, rank, waited_ns)):
                continue
            if (context.share(waited_ns, context.timed) or 0.0) >= LEAST_SHARE:
                dear.append(Bill(rank, part, line))
    return rows, dear


def _without_experts(context: Context, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the waiting for the rank whose experts got most, which is billed apart."""
    return keep(rows, ~rows["match_id"].isin(expert_imbalance.billed_matches(context)))


def _of_origins(context: Context) -> list[Bill]:
    made = []
    for origin in origins(context):
        rows = context.in_alike.loc[origin.caused_ns.index]
        rows = keep(rows, ~hidden(rows))[["step", "rank", "op", "match_id"]]
        rows = with_columns(rows, waited_ns=origin.caused_ns.loc[rows.index], all=0)
        rows = _without_experts(context, rows)
        for line in tally(context.shown(rows), ("all",), ("waited_ns",), context.timed).lines:
            if (context.share(line.figures["waited_ns"], context.timed) or 0.0) >= LEAST_SHARE:
                made.append(Bill(origin.rank, rows, line, origin))
    return made


def billed_ns(context: Context) -> pd.Series[Any]:
    """Return, by row of the collectives' frame, the exposed waiting that straggler findings bill."""
    parts = [bill.rows["waited_ns"] for bill in bills(context)[1]]
    billed: pd.Series[Any] = pd.concat(parts) if parts else pd.Series(dtype="int64")
    # A part of a wait may be an origin's, and the rest that of the rank that came last.
    return billed.groupby(level=0).sum()
