"""Buffers that ranks held equal and do not any more, where nothing makes them equal again."""

from __future__ import annotations

from typing import Any

import pandas as pd

from shardtoll.analyzers.agreement import EPS, looks, rows_of, split, suspects
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.data_parallel import data_parallel
from shardtoll.analyzers.replica_remedies import drift_remedy
from shardtoll.analyzers.replicas import Replicas
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import ranks as rank_words
from shardtoll.ledger import Evidence, Finding, Where


def find(context: Context) -> list[Finding]:
    """Return one finding for all such buffers of data-parallel ranks: often a choice, as in batch norm.

    Silent where buffers are broadcast, as DDP does before each forward: there they differ between steps only.
    """
    rows = rows_of(context, "buffer")
    rows = keep(rows, rows["placements"].isna() & rows["square"].notna())
    if rows.empty or _broadcast(context):
        return []
    sets = [
        Replicas(str(name), ranks, "start", sure=False)
        for ranks in data_parallel(context)
        for name in rows["name"].unique()
    ]
    apart: dict[str, tuple[int, float | None]] = {}
    found: tuple[int, ...] = ()
    by_set: Any = suspects(rows, sets).groupby("set", sort=False)
    for number, of_set in by_set:
        one = sets[int(number)]
        for step, at_step in looks(of_set):
            eps = EPS.get(str(at_step["dtype"].iloc[0]), 0.0)
            how = split(at_step, one.ranks, eps=eps, noise=0.0, absent_counts=False)
            if how is not None:
                apart.setdefault(one.name, (step, how.relative))
                found = tuple(sorted({*found, *one.ranks}))
    if not apart:
        return []
    names = list(apart)
    step, relative = apart[names[0]]
    one = Replicas(names[0], found, "start", sure=False)
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [
        Finding(
            kind="replica-drift",
            severity="info",
            title=f"buffers differ between data-parallel {rank_words(found)} from step {step} on: {shown}; "
            "which rank saves or evaluates decides what they are",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=len(names),
            ranks=found,
            where=Where.of_parameter(names[0]),
            evidence=(
                Evidence("buffers", ", ".join(names)),
                Evidence("first step", step),
                Evidence("distance / size", relative),
            ),
            remedy=drift_remedy(one, gradient_differs=False, buffer=True),
            confidence="possible",
        )
    ]


def _broadcast(context: Context) -> bool:
    frame: pd.DataFrame = context.in_steps
    return bool((frame["op"].isin(("broadcast",)) & (frame["phase"] == "forward")).any())
