"""Collectives that a group's own count knows of and the record does not list."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy, Where
from shardtoll.ledger.words.human import plural as times
from shardtoll.ledger.words.human import ranks

EXAMPLES = 5
"""Counts shown as evidence."""

NOTABLE = 0.1
"""Share of a group's collectives that are counted but not listed, from which this is a warning."""


def two_threads(context: Context) -> frozenset[str]:
    """Return the groups that another thread than the training one has used, on some rank."""
    return frozenset(keep(context.counts, context.counts["other_thread"].fillna(False))["group"].astype(str))


def off(context: Context) -> pd.DataFrame:
    """Return the counts of groups whose own number differs from ours; an unknown number proves nothing.

    Their column `unseen` says whether watching alone explains it. Then fewer are on record than were issued,
    in a step that the rank only watched. An example is DDP's reducer, which issues them from C++. Groups of
    two threads are left out.
    """
    return _marked(context, keep(context.counts, ~context.counts["group"].isin(two_threads(context))))


def blurred(context: Context) -> pd.DataFrame:
    """Return what `off` does of the groups of two threads. A call may be counted on one side of a step's end
    and recorded on the other."""
    return _marked(context, keep(context.counts, context.counts["group"].isin(two_threads(context))))


def _marked(context: Context, counts: pd.DataFrame) -> pd.DataFrame:
    rows = keep(counts, counts["issued"] != counts["recorded"])
    if rows.empty:
        none_marked: pd.DataFrame = with_columns(rows, unseen=np.zeros(0, dtype=bool))
        return none_marked
    steps = context.step_rows
    watched = set(steps.loc[steps["level"] == "watch", ["step", "rank"]].itertuples(index=False, name=None))
    only_watched = [pair in watched for pair in zip(rows["step"], rows["rank"], strict=True)]
    fewer = (rows["recorded"] < rows["issued"]).to_numpy(dtype=bool)
    marked: pd.DataFrame = with_columns(rows, unseen=np.array(only_watched, dtype=bool) & fewer)
    return marked


def lacking(context: Context) -> tuple[int, int]:
    """Return how many collectives are counted only, and how many were issued, over the timed steps.

    All ranks and groups together, as far as groups count.
    """
    is_counted = context.counts["step"].isin(context.timed_rows["step"]) & context.counts["issued"].notna()
    rows = keep(context.counts, is_counted)
    return int((rows["issued"] - rows["recorded"]).clip(lower=0).sum()), int(rows["issued"].sum())


def words(lacks: int, issued: int) -> str:
    """Return `604 of 616 collectives`."""
    return f"{lacks:,} of {times(issued, 'collective')}"


def unseen(context: Context, name: str, rows: pd.DataFrame) -> Finding:
    """Return that watching did not see some of a group's collectives: no defect, but no whole bill either."""
    where = where_of(context, name)
    of_group = keep(context.counts, context.counts["group"] == name)
    issued = int(keep(of_group, of_group["step"].isin(rows["step"]))["issued"].sum())
    lacks = int((rows["issued"] - rows["recorded"]).sum())
    seen = tuple(sorted({int(rank) for rank in rows["rank"]}))
    # Held against all steps: a few of another shape, as those that log, leave the bill almost whole.
    notable = lacks > NOTABLE * int(of_group["issued"].sum())
    advice = (
        'Survey more of the steps, with a smaller survey_every or, for a short look, level="survey": what '
        "such steps issue is listed where it repeats a surveyed one."
        if context.surveyed
        else 'Use level="schedule" (the default): it surveys a few steps, and what C++ issues in '
        "the others is listed from those."
    )
    return Finding(
        kind="unmatched-collectives",
        severity="warning" if notable else "info",
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


def by_two_threads(context: Context, name: str, rows: pd.DataFrame) -> Finding:
    """Return that a group's counts cannot be held against its records step by step."""
    where = where_of(context, name)
    wrong = int((rows["issued"] - rows["recorded"]).abs().sum())
    seen = tuple(sorted({int(rank) for rank in rows["rank"]}))
    return Finding(
        kind="unmatched-collectives",
        severity="info",
        title=f"two threads use group {where.mesh_dim or name}, so its collectives belong to no single "
        f"step: counts and records differ by {wrong} on {ranks(seen)}",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=wrong,
        ranks=seen,
        where=where,
        evidence=numbers(rows),
        remedy=Remedy(
            "Give the other thread (an asynchronous checkpoint, for example) its own group: the count can be "
            "checked then. Nothing is wrong with the step.",
            "checkpoint_group = dist.new_group(backend='gloo')  # for the other thread alone",
        ),
        confidence="likely",
    )


def where_of(context: Context, name: str) -> Where:
    """Return the place of a group, with its mesh dimension if all of that name have one."""
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
