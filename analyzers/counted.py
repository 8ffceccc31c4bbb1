"""Collectives that a group's own count knows of and the record does not list."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import ranks, times
from shardtoll.ledger import Evidence, Finding, Remedy, Where

EXAMPLES = 5
"""Counts shown as evidence."""

NOTABLE = 0.1
"""Share of a group's collectives from which it is a warning that they are counted and not listed."""


def off(context: Context) -> pd.DataFrame:
    """Return the counts of groups whose own number differs from ours; an unknown number proves nothing.

    Their column `unseen` says whether watching alone explains it: fewer on record than were issued, in a
    step that the rank only watched, as where DDP's reducer issues them from C++.
    """
    rows = keep(context.counts, context.counts["issued"] != context.counts["recorded"])
    steps = context.step_rows
    watched = set(steps.loc[steps["level"] == "watch", ["step", "rank"]].itertuples(index=False, name=None))
    only_watched = [pair in watched for pair in zip(rows["step"], rows["rank"], strict=True)]
    fewer = (rows["recorded"] < rows["issued"]).to_numpy(dtype=bool)
    marked: pd.DataFrame = rows.assign(unseen=np.array(only_watched, dtype=bool) & fewer)
    return marked


def lacking(context: Context) -> tuple[int, int]:
    """Return how many collectives are counted only, and how many were issued, over the timed steps.

    All ranks and groups together, as far as groups count.
    """
    known = context.counts["step"].isin(context.timed_rows["step"]) & context.counts["issued"].notna()
    rows = keep(context.counts, known)
    return int((rows["issued"] - rows["recorded"]).clip(lower=0).sum()), int(rows["issued"].sum())


def words(lacks: int, issued: int) -> str:
    """Return `604 of 616 collectives`."""
    return f"{lacks:,} of {times(issued, 'collective')}"


def unseen(context: Context, name: str, rows: pd.DataFrame) -> Finding:
    """Return that watching did not see some of a group's collectives: no defect, but no whole bill either."""
    where = where_of(context, name)
    in_steps = context.counts["step"].isin(rows["step"]) & (context.counts["group"] == name)
    issued = int(keep(context.counts, in_steps)["issued"].sum())
    lacks = int((rows["issued"] - rows["recorded"]).sum())
    seen = tuple(sorted({int(rank) for rank in rows["rank"]}))
    advice = (
        'Survey more of the steps, with a smaller survey_every or, for a short look, level="survey": what '
        "such steps issue is listed where it repeats a surveyed one."
        if context.surveyed
        else 'Use level="schedule" (the default): it surveys a few steps, and what C++ issues in '
        "the others is listed from those."
    )
    return Finding(
        kind="unmatched-collectives",
        severity="warning" if lacks > NOTABLE * issued else "info",
        title=f"watching does not see what C++ issues, as DDP's reducer does: {words(lacks, issued)} of "
        f"group {where.mesh_dim or name} are counted, not listed, on {ranks(seen)}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=lacks,
        ranks=seen,
        where=where,
        evidence=numbers(rows),
        remedy=Remedy(advice),
    )


def where_of(context: Context, name: str) -> Where:
    """Return the place of a group, with its mesh dimension where all of that name have one."""
    dims = {group.mesh_dim for group in context.groups(name)}
    return Where(group=name, mesh_dim=dims.pop() if len(dims) == 1 else None)


def numbers(rows: pd.DataFrame) -> tuple[Evidence, ...]:
    """Return the first few counts as evidence."""
    return tuple(
        Evidence(
            f"step {row['step']} rank {row['rank']}",
            f"{row['issued']} issued, {row['recorded']} recorded",
        )
        for row in rows.head(EXAMPLES).to_dict("records")
    )
