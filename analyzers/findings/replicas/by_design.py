"""Replicas that differ on purpose, or may: their values are averaged now and then, or each rank's is its own.

Local SGD has each rank step on its own gradients and averages the parameters every so many steps. The proof:
a message of room for the parameter adds up values that are no gradient, over the ranks that differ. After it
they are equal again, bit for bit, and near the mean of what they were. It has to go on until the run ends:
the last time is followed by no more steps than lie between two times. Less proof may be right: one time
alone, one between steps, or a sum without a look that shows the division.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.averages import verdict
from shardtoll.analyzers.findings.replicas.combined import combined
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD
from shardtoll.analyzers.findings.replicas.replicas import Replicas, replicas
from shardtoll.analyzers.findings.replicas.value_sums import BEFORE, Sum, looks, names_in, value_sums
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.words.human import size

RIGHT: Final = "averaged"
WRONG: Final = "added up and not divided"

WIDTHS = {"float64": 8, "float32": 4}
"""Bytes of an element; the other dtypes of parameters have two."""


class Design(Struct, frozen=True):
    """Why replicas differ."""

    unless: str | None
    """Words for a condition under which it is right; None if the records show that it is."""


def design(context: Context, copies: Replicas) -> Design | None:
    """Return why these replicas differ on purpose, or may; None if nothing speaks for it."""
    if copies.basis == "placements":
        return None
    judged = [_judge(context, copies, times) for times in _lines(context, copies)]
    if RIGHT in judged:
        return Design(None)
    if WRONG in judged:
        return None
    if copies.basis == "start" and copies.name in combined(context):
        module = combined(context)[copies.name]
        return Design(
            "each rank's is its own, as an expert or a part of a layer: "
            f"{f'module {module}' if module else 'the model'} sums over ranks what they compute with it"
        )
    return next((Design(said) for said in judged if said is not None), None)


def _lines(context: Context, copies: Replicas) -> list[list[Sum]]:
    """Return what may have added up this parameter's values, by the line that asked for it."""
    least = _bytes_of(context).get(copies.name, 0)
    lines: dict[tuple[object, ...], list[Sum]] = {}
    for each in value_sums(context):
        if each.step == BEFORE or not set(copies.ranks) <= set(each.over):
            continue
        if each.name == copies.name or (each.name is None and each.largest >= least > 0):
            size_of = (each.largest, each.whole) if each.name is None else ()
            lines.setdefault((each.name, each.source, each.over, each.between, *size_of), []).append(each)
    return list(lines.values())


def _judge(context: Context, copies: Replicas, line: Sequence[Sum]) -> str | None:
    """Return whether a line averages this parameter: `RIGHT`, `WRONG`, in words what would make it right.

    None if it does not, or did not go on. It is right where a look shows the mean, or where there is none and
    the message is an average of the values. Both need two times.
    """
    table = looks(context).get(copies.name)
    if table is not None and set(copies.ranks) <= set(table.columns):
        mine = table[list(copies.ranks)].dropna()
    else:
        mine = pd.DataFrame()
    equal = dict(zip(mine.index, mine.nunique(axis=1) == 1, strict=True)) if len(mine) else {}
    if any(not each.between and not equal.get(each.step, True) for each in line):
        return None
    times = sorted({each.step for each in line})
    if not _lasts(context, times):
        return None
    first = line[0]
    by_source = f" at {first.source}" if first.source else ""
    if first.name is not None:
        may = f"the parameters themselves are averaged, as in local SGD: values are added up{by_source}"
    elif first.whole >= _bytes_of_all(context).get(copies.ranks, 0) > 0:
        may = (
            f"the parameters themselves are averaged, as in local SGD: {size(first.whole)} that name no "
            f"parameter and may be all of them are added up{by_source}"
        )
    else:
        may = None
    if not any(step >= 0 for step in equal):
        named = all(each.name is not None and each.divides and not each.between for each in line)
        return RIGHT if named and len(times) > 1 else may
    inside = [each.step for each in line if not each.between]
    if any(equal.get(step) and verdict(context, first.over, step, copies.name) == "sum" for step in inside):
        return WRONG
    shown = _shown(mine, inside)
    if not shown:
        return may
    outcomes = {verdict(context, first.over, step, copies.name) for _, step in shown}
    copied = any(since < step <= until for since, until in shown for step in _copies(context, copies))
    if "mean" in outcomes and not copied and len(times) > 1:
        return RIGHT
    return (
        may
        or f"the parameters themselves are averaged, as in local SGD: what is added up{by_source} may be they"
    )


def _shown(mine: pd.DataFrame, times: Sequence[int]) -> list[tuple[int, int]]:
    """Return the looks, and those before them, between which values were added up and became equal.

    They were equal bit for bit, had not been before, and had moved.
    """
    equal = (mine.nunique(axis=1) == 1).to_numpy(dtype=bool)
    steps, first = mine.index.to_numpy(dtype=np.int64), mine.iloc[:, 0].to_numpy()
    return [
        (int(steps[number - 1]), int(steps[number]))
        for number in range(1, len(mine))
        if equal[number]
        and first[number] != first[number - 1]
        and not equal[:number].all()
        and any(steps[number - 1] < step <= steps[number] for step in times)
    ]


def _copies(context: Context, copies: Replicas) -> set[int]:
    """Return the steps in which the values may have been copied between these ranks, which makes them equal.

    If they may have been copied, the others' work is lost, whatever else was added up.
    """
    least = _bytes_of(context).get(copies.name, 0)
    return {
        step
        for step, over, name, largest in _copied(context)
        if set(copies.ranks) <= set(over) and (name == copies.name or (name is None and largest >= least))
    }


@once
def _copied(context: Context) -> set[tuple[int, tuple[int, ...], str | None, int]]:
    frame = context.in_steps
    mask = frame["op"].isin(("broadcast", "all_gather")) & frame["phase"].isin(BACKWARD)
    mask &= frame["message_bytes"].notna() & ~frame["implicit"].fillna(False).astype(bool)
    rows = keep(frame, mask)[["step", "group", "rank", "parameter", "message_bytes"]].drop_duplicates()
    ranks_of = context.members
    return {
        (int(step), over, name, int(largest))
        for step, group, rank, names, largest in rows.itertuples(index=False)
        if (over := ranks_of.get((str(group), int(rank)))) is not None
        for name in names_in(names)
    }


def _lasts(context: Context, times: Sequence[int]) -> bool:
    """Whether the steps after the last time are no more than between two times, or before the first."""
    gaps = np.diff([-1, *times])
    return bool(max(context.steps, default=times[-1]) - times[-1] <= gaps.max())


@once
def _bytes_of(context: Context) -> dict[str, int]:
    table = context.parameters
    rows = keep(table, table["requires_grad"].astype(bool) & table["tied_to"].isna())
    rows = rows.drop_duplicates("name")
    width = rows["dtype"].astype(str).map(WIDTHS).fillna(2).astype(np.int64)
    return dict(zip(rows["name"].astype(str), (rows["numel"].astype(np.int64) * width).tolist(), strict=True))


@once
def _bytes_of_all(context: Context) -> dict[tuple[int, ...], int]:
    """Return for each set of ranks the bytes of all parameters that are plain replicas on it."""
    each = _bytes_of(context)
    whole: dict[tuple[int, ...], int] = {}
    for ranks, name in {
        (copies.ranks, copies.name) for copies in replicas(context) if copies.basis != "placements"
    }:
        whole[ranks] = whole.get(ranks, 0) + each.get(name, 0)
    return whole
