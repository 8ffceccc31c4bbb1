"""Replicas that differ on purpose, or may: their values are averaged now and then, or each rank's is its own.

Local SGD has each rank step on its own gradients and averages the parameters every so many steps. What shows
it is that a message of room for the parameter adds up what is no gradient, over the ranks that differ, and
that they are equal again after it, bit for bit, and near the mean of what they were. It has to go on until
the run ends: the steps after the last time are no more than there were between two times. What is less than
that, as one time alone, a sum of which no look tells that it was divided, or one between steps, may be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.averages import verdict
from shardtoll.analyzers.combined import combined
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.reductions import BACKWARD, members
from shardtoll.analyzers.replicas import Replicas, replicas
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.value_sums import BEFORE, Sum, looks, names_in, value_sums
from shardtoll.analyzers.words import size

RIGHT: Final = "averaged"
WRONG: Final = "added up and not divided"

WIDTHS = {"float64": 8, "float32": 4}
"""Bytes of an element; the other dtypes of parameters have two."""


@dataclass(frozen=True, slots=True)
class Design:
    """Why replicas differ."""

    unless: str | None
    """What would make it right, in words; None where the records show that it is."""


def design(context: Context, one: Replicas) -> Design | None:
    """Return why these replicas differ on purpose, or may; None where nothing speaks for it."""
    if one.basis == "placements":
        return None
    judged = [_judge(context, one, times) for times in _lines(context, one)]
    if RIGHT in judged:
        return Design(None)
    if WRONG in judged:
        return None
    if one.basis == "start" and one.name in combined(context):
        module = combined(context)[one.name]
        return Design(
            "each rank's is its own, as an expert or a part of a layer: "
            f"{f'module {module}' if module else 'the model'} adds up over ranks what they compute with it"
        )
    return next((Design(said) for said in judged if said is not None), None)


def _lines(context: Context, one: Replicas) -> list[list[Sum]]:
    """Return what may have added up this parameter's values, by the line that asked for it."""
    least = _bytes_of(context).get(one.name, 0)
    found: dict[tuple[object, ...], list[Sum]] = {}
    for each in value_sums(context):
        if each.step == BEFORE or not set(one.ranks) <= set(each.over):
            continue
        if each.name == one.name or (each.name is None and each.largest >= least > 0):
            size_of = (each.largest, each.whole) if each.name is None else ()
            found.setdefault((each.name, each.source, each.over, each.between, *size_of), []).append(each)
    return list(found.values())


def _judge(context: Context, one: Replicas, line: Sequence[Sum]) -> str | None:
    """Return whether a line averages this parameter: `RIGHT`, `WRONG`, in words what would make it right.

    None where it does not, or did not go on. It is right where a look shows the mean, or where there is none
    and the message is an average of the values; both need two times.
    """
    table = looks(context).get(one.name)
    if table is not None and set(one.ranks) <= set(table.columns):
        mine = table[list(one.ranks)].dropna()
    else:
        mine = pd.DataFrame()
    equal = dict(zip(mine.index, mine.nunique(axis=1) == 1, strict=True)) if len(mine) else {}
    if any(not each.between and not equal.get(each.step, True) for each in line):
        return None
    times = sorted({each.step for each in line})
    if not _lasts(context, times):
        return None
    first = line[0]
    at = f" at {first.source}" if first.source else ""
    if first.name is not None:
        may = f"the parameters themselves are averaged, as in local SGD: values are added up{at}"
    elif first.whole >= _bytes_of_all(context).get(one.ranks, 0) > 0:
        may = (
            f"the parameters themselves are averaged, as in local SGD: {size(first.whole)} that name no "
            f"parameter and may be all of them are added up{at}"
        )
    else:
        may = None
    if not any(step >= 0 for step in equal):
        named = all(each.name is not None and each.divides and not each.between for each in line)
        return RIGHT if named and len(times) > 1 else may
    inside = [each.step for each in line if not each.between]
    if any(equal.get(step) and verdict(context, first.over, step, one.name) == "sum" for step in inside):
        return WRONG
    shown = _shown(mine, inside)
    if not shown:
        return may
    outcomes = {verdict(context, first.over, step, one.name) for _, step in shown}
    copied = any(since < step <= until for since, until in shown for step in _copies(context, one))
    if "mean" in outcomes and not copied and len(times) > 1:
        return RIGHT
    return may or f"the parameters themselves are averaged, as in local SGD: what is added up{at} may be they"


def _shown(mine: pd.DataFrame, times: Sequence[int]) -> list[tuple[int, int]]:
    """Return the looks, and those before them, between which values were added up and became equal.

    They were equal bit for bit, had not been before, and had moved.
    """
    equal = (mine.nunique(axis=1) == 1).to_numpy(dtype=bool)
    steps, first = mine.index.to_numpy(dtype=np.int64), mine.iloc[:, 0].to_numpy()
    return [
        (int(steps[at - 1]), int(steps[at]))
        for at in range(1, len(mine))
        if equal[at]
        and first[at] != first[at - 1]
        and not equal[:at].all()
        and any(steps[at - 1] < step <= steps[at] for step in times)
    ]


def _copies(context: Context, one: Replicas) -> set[int]:
    """Return the steps in which the values may have been copied between these ranks, which makes them equal.

    Where they are, the others' work is lost, whatever else was added up.
    """
    least = _bytes_of(context).get(one.name, 0)
    return {
        step
        for step, over, name, largest in _copied(context)
        if set(one.ranks) <= set(over) and (name == one.name or (name is None and largest >= least))
    }


@once
def _copied(context: Context) -> set[tuple[int, tuple[int, ...], str | None, int]]:
    frame = context.in_steps
    mask = frame["op"].isin(("broadcast", "all_gather")) & frame["phase"].isin(BACKWARD)
    mask &= frame["message_bytes"].notna() & ~frame["implicit"].fillna(False).astype(bool)
    rows = keep(frame, mask)[["step", "group", "rank", "parameter", "message_bytes"]].drop_duplicates()
    known = members(context)
    return {
        (int(step), over, name, int(largest))
        for step, group, rank, names, largest in rows.itertuples(index=False)
        if (over := known.get((str(group), int(rank)))) is not None
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
    found: dict[tuple[int, ...], int] = {}
    for ranks, name in {(one.ranks, one.name) for one in replicas(context) if one.basis != "placements"}:
        found[ranks] = found.get(ranks, 0) + each.get(name, 0)
    return found
