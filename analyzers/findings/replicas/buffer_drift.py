"""Buffers that ranks held equal and do not any more, and nothing makes them equal again."""

from __future__ import annotations

from typing import Any

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import EPS, looks, rows_of, split, suspects
from shardtoll.analyzers.findings.replicas.data_parallel import data_parallel
from shardtoll.analyzers.findings.replicas.replica_remedies import drift_remedy
from shardtoll.analyzers.findings.replicas.replicas import Replicas
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Where
from shardtoll.ledger.words.human import ranks as rank_words


def find(context: Context) -> list[Finding]:
    """Return one finding for all such buffers of data-parallel ranks: often a choice, as in batch norm.

    No finding if buffers are broadcast, as DDP does before each forward: there they differ between steps
    only.
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
    everywhere: tuple[int, ...] = ()
    by_set: Any = suspects(rows, sets).groupby("set", sort=False)
    for number, of_set in by_set:
        copies = sets[int(number)]
        for step, at_step in looks(of_set):
            eps = EPS.get(str(at_step["dtype"].iloc[0]), 0.0)
            how = split(at_step, copies.ranks, eps=eps, noise=0.0, absent_counts=False)
            if how is not None:
                apart.setdefault(copies.name, (step, how.relative))
                everywhere = tuple(sorted({*everywhere, *copies.ranks}))
    if not apart:
        return []
    names = list(apart)
    step, relative = apart[names[0]]
    copies = Replicas(names[0], everywhere, "start", sure=False)
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [
        Finding(
            kind="replica-drift",
            severity="info",
            title=f"buffers differ between data-parallel {rank_words(everywhere)} from step {step} on: "
            f"{shown}; which rank saves or evaluates decides their values",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=len(names),
            ranks=everywhere,
            where=Where.of_parameter(names[0]),
            evidence=(
                Evidence("buffers", ", ".join(names)),
                Evidence("first step", step),
                Evidence("distance / size", relative),
            ),
            remedy=drift_remedy(copies, gradient_differs=False, buffer=True),
            confidence="possible",
            parameters=tuple(names),
        )
    ]


def _broadcast(context: Context) -> bool:
    frame: pd.DataFrame = context.in_steps
    return bool((frame["op"].isin(("broadcast",)) & (frame["phase"] == "forward")).any())
