"""Which checks of values looked at what they need and found nothing wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.duplicates.duplicated_data import batches
from shardtoll.analyzers.findings.replicas.agreement import rows_of
from shardtoll.analyzers.findings.replicas.data_parallel import data_parallel
from shardtoll.analyzers.findings.replicas.replicas import replicas
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import KINDS
from shardtoll.ledger.answers.traffic import SoundCheck


def value_checks(context: Context, kinds: Collection[str]) -> list[SoundCheck]:
    """Return the checks of values that ran and are fine; `kinds` are those of the findings.

    A check ran if it had something to compare: gradients or parameters of replicas on two ranks, batches of
    data-parallel ranks, norms. Any finding on gradients speaks against all checks of gradients.
    """
    wrong = {kind for kind in kinds if KINDS[kind] == "correctness"}
    checks = []
    if not wrong - {"replica-drift"}:
        checks += _of_steps("gradients", _compared(context, rows_of(context, "gradient")))
        checks += _of_steps("norms", rows_of(context, "norm")["step"])
    if not wrong:
        after = pd.concat([rows_of(context, kind) for kind in ("parameter", "buffer")])
        checks += _of_steps("replicas", _compared(context, after))
    if "duplicated-data" not in kinds:
        checks += _of_steps("data", _batches(context))
    return checks


def _of_steps(name: str, steps: Iterable[int]) -> list[SoundCheck]:
    looked = tuple(sorted({int(step) for step in steps}))
    return [SoundCheck(name, looked)] if looked else []


def _compared(context: Context, rows: pd.DataFrame) -> set[int]:
    """Return the steps in which a value that replicas hold was seen on two of them."""
    sets = replicas(context) if len(rows) else []
    of_name: dict[str, set[int]] = {}
    for copies in sets:
        of_name.setdefault(copies.name, set()).update(copies.ranks)
    rows = keep(rows, rows["name"].isin(list(of_name)) & rows["hash"].notna())
    seen: dict[tuple[int, str], set[int]] = {}
    for step, rank, name in rows[["step", "rank", "name"]].itertuples(index=False, name=None):
        if int(rank) in of_name[name]:
            seen.setdefault((int(step), name), set()).add(int(rank))
    return {step for (step, _), ranks in seen.items() if len(ranks) > 1}


def _batches(context: Context) -> set[int]:
    """Return the steps in which batches of two data-parallel ranks could be compared."""
    rows = batches(context).rows
    if rows.empty:
        return set()
    steps: set[int] = set()
    sound = keep(rows, rows["sound"])
    for ranks in data_parallel(context):
        by_step = keep(sound, sound["rank"].isin(ranks)).groupby("step")["rank"].nunique()
        steps.update(int(step) for step in by_step.index[by_step > 1])
    return steps
