"""Replicas that differ on purpose, or may: their values are averaged now and then, or each rank's is its own.

Local SGD has each rank step on its own gradients and averages the parameters every so many steps. What shows
it is that a message of room for the parameter adds up what is no gradient, over the ranks that differ, and
that they are equal again after it, bit for bit. It has to go on until the run ends: the steps after the last
time are no more than there were between two times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardtoll.analyzers.combined import combined
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.replicas import Replicas, replicas
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.value_sums import OUTSIDE, Sum, looks, value_sums
from shardtoll.analyzers.words import size

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
    sums = [each for each in value_sums(context) if set(one.ranks) <= set(each.over)]
    again = _equal_again(context, one, sums)
    named = [each.step for each in sums if each.name == one.name]
    for steps in (again, named):
        if steps:
            return Design(None) if _lasts(context, steps) else None
    if one.basis == "start" and one.name in combined(context):
        module = combined(context)[one.name]
        return Design(
            "each rank's is its own, as an expert or a part of a layer: "
            f"{f'module {module}' if module else 'the model'} adds up over ranks what they compute with it"
        )
    for each in sums:
        if each.name is None and each.whole >= _bytes_of_all(context).get(one.ranks, 0) > 0:
            at = f" at {each.source}" if each.source else ""
            return Design(
                f"the parameters themselves are averaged, as in local SGD: {size(each.whole)} that name no "
                f"parameter and may be all of them are added up{at}"
            )
    return None


def _equal_again(context: Context, one: Replicas, sums: Sequence[Sum]) -> list[int]:
    """Return the steps in which something with room for it was added up, if replicas were equal by it.

    They were equal bit for bit, had not been before, and had moved.
    """
    table = looks(context).get(one.name)
    least = _bytes_of(context).get(one.name, 0)
    room = sorted({each.step for each in sums if each.name in (None, one.name) and each.largest >= least})
    if table is None or not room or not least or not set(one.ranks) <= set(table.columns):
        return []
    mine = table[list(one.ranks)].dropna()
    equal = (mine.nunique(axis=1) == 1).to_numpy(dtype=bool)
    steps, first = mine.index.to_numpy(dtype=np.int64), mine.iloc[:, 0].to_numpy()
    shown = any(
        equal[at]
        and first[at] != first[at - 1]
        and not equal[:at].all()
        and any(steps[at - 1] < step <= steps[at] for step in room)
        for at in range(1, len(mine))
    )
    return room if shown else []


def _lasts(context: Context, times: Iterable[int]) -> bool:
    """Whether the steps after the last time are no more than between two times, or before the first."""
    inside = sorted({step for step in times if step != OUTSIDE})
    if not inside:
        return True
    gaps = np.diff([-1, *inside])
    return bool(max(context.steps, default=inside[-1]) - inside[-1] <= gaps.max())


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
