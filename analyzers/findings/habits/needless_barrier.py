"""Barriers in each step, where other collectives make all ranks wait for each other anyway."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.habits.habit import Habit, habits, in_each, price
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import begins_with, keep, number
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.words.human import duration, place

ORDERING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Nobody has the result of one of these before every rank has joined in."""

SAVES: Final = "checkpoint."
"""Causes that begin so guard files."""

ALWAYS: Final = 0.9
"""Share of a barrier's calls to which one rank is last from which the others may be meant to wait for it."""

LATE_NS: Final = 1_000_000
"""By how much that rank is last, median, for it to be no noise."""

KEYS: Final = ("group", "net", "phase", "caused_by_op", "source", "module")


@once
def find(context: Context) -> list[Finding]:
    """Return one finding a place that has a barrier in each step of each rank of its group.

    Silent unless every such step has a collective over the same ranks, or more, that orders them too.
    """
    rows = context.in_steps
    barriers = keep(rows, (rows["op"] == "barrier") & (rows["group_size"] > 1))
    barriers = keep(barriers, ~begins_with(barriers["caused_by_op"], SAVES))
    if barriers.empty:
        return []
    ordering = keep(rows, rows["op"].isin(ORDERING))
    return [
        _finding(context, habit)
        for habit in habits(context, barriers, KEYS, context.steps)
        if in_each(_spanning(context, ordering, habit.over), context.steps, habit.line.ranks)
    ]


def _spanning(context: Context, ordering: pd.DataFrame, over: frozenset[int]) -> pd.DataFrame:
    """Return the collectives in which all of some ranks take part."""
    pairs = list(zip(ordering["group"].astype(str), ordering["rank"].astype(int), strict=True))
    spanning = {pair: over.issubset(context.members.get(pair, ())) for pair in set(pairs)}
    spans = pd.Series([spanning[pair] for pair in pairs], dtype=bool)
    return keep(ordering, spans.to_numpy(dtype=bool))


def _finding(context: Context, habit: Habit) -> Finding:
    line = habit.line
    cost = price(context, line)
    last = _awaited(habit.rows)
    saving = None if last is not None else cost.saving_ns
    what = "" if last is None else f"; rank {last} is last, so the barrier may be meant"
    return Finding(
        kind="needless-barrier",
        severity="info" if last is not None else cost.severity,
        title=f"a barrier in each step on {line.first['net']} in {line.first['phase']}"
        f"{place(line.text('module'), line.text('source'))} costs {duration(cost.toll_ns)}: the step's other "
        f"collectives make the same ranks wait for each other already{what}",
        toll_ns=cost.toll_ns,
        floor_ns=0 if last is None else None,
        saving_ns=saving,
        bytes=None,
        count=line.count,
        ranks=line.ranks,
        where=line.where("phase", "module", "source", "group", "mesh_dim"),
        rows=habit.spoken,
        evidence=(
            Evidence("barriers in all steps and ranks", line.total),
            Evidence("rank that is last nearly always", last),
            Evidence("taken for granted", "it guards no file and no memory that ranks share"),
        ),
        remedy=Remedy(
            "Leave the barrier out, unless it guards a file or memory that ranks share: collectives "
            "already order the ranks.",
            "if saves_now:  # only if ranks share a file\n    dist.barrier()",
            None if saving is None else cost.against("this barrier"),
        ),
        confidence="possible" if last is not None else "likely",
    )


def _awaited(rows: pd.DataFrame) -> int | None:
    """Return the rank that is last to nearly every call, by much; None if there is none."""
    of_match = rows[rows["match_id"].notna() & rows["late_rank"].notna()].drop_duplicates("match_id")
    calls = rows["match_id"].nunique()
    if of_match.empty or not calls:
        return None
    counts = of_match["late_rank"].value_counts()
    of_rank = of_match[of_match["late_rank"] == counts.index[0]]
    if int(counts.iloc[0]) < ALWAYS * calls or float(of_rank["late_ns"].median()) < LATE_NS:
        return None
    return number(counts.index[0])
