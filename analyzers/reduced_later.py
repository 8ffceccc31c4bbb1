"""Gradients that are a part as they are held and are added up elsewhere.

As in ZeRO's one flat buffer, or where `reduce` leaves the sum with the rank that owns the parameter, which
updates it and sends it to the others.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.reductions import BACKWARD, REDUCES, members
from shardtoll.analyzers.replicas import Replicas
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.value_sums import looks

SIZES: Final = {"float64": 8, "float32": 4}
"""Bytes of an element; the other dtypes of gradients have two."""

TO_OWNER: Final = ("reduce",)
FROM_OWNERS: Final = ("broadcast", "all_gather")

Sizes = dict[tuple[int, tuple[int, ...]], int]
Roots = dict[tuple[int, str], set[tuple[tuple[int, ...], int]]]


@once
def _largest(context: Context) -> Sizes:
    """Return for each step and set of ranks the largest message that added something up after forward."""
    return _sizes(context, context.in_steps, REDUCES)


@once
def _unnamed(context: Context) -> Sizes:
    """Return the same of the messages that name no parameter, as those of one flat buffer."""
    return _sizes(context, _nameless(context), (*REDUCES, *TO_OWNER))


@once
def _unnamed_to_owner(context: Context) -> Sizes:
    return _sizes(context, _nameless(context), TO_OWNER)


@once
def _unnamed_from_owners(context: Context) -> Sizes:
    return _sizes(context, _nameless(context), FROM_OWNERS)


def _nameless(context: Context) -> pd.DataFrame:
    return keep(context.in_steps, context.in_steps["parameter"].isna())


def _sizes(context: Context, frame: pd.DataFrame, ops: tuple[str, ...]) -> Sizes:
    frame = keep(frame, frame["op"].isin(ops) & frame["phase"].isin(BACKWARD))
    frame = keep(frame, frame["message_bytes"].notna())
    known = members(context)
    found: Sizes = {}
    columns = frame[["step", "group", "rank", "message_bytes"]].drop_duplicates()
    for step, group, rank, size in columns.itertuples(index=False):
        over = known.get((str(group), int(rank)))
        if over is not None:
            key = (int(step), over)
            found[key] = max(found.get(key, 0), int(size))
    return found


@once
def _owners(context: Context) -> Roots:
    """Return by step and parameter over which ranks `reduce` added up its gradient, and for which rank."""
    return _roots(context, TO_OWNER)


@once
def _senders(context: Context) -> Roots:
    """Return likewise among which ranks its values were sent, and by which rank."""
    return _roots(context, FROM_OWNERS)


def _roots(context: Context, ops: tuple[str, ...]) -> Roots:
    frame = context.in_steps
    frame = keep(frame, frame["op"].isin(ops) & frame["phase"].isin(BACKWARD))
    frame = keep(frame, frame["parameter"].notna() & frame["root"].notna())
    known = members(context)
    found: Roots = {}
    columns = frame[["step", "group", "rank", "parameter", "root"]].drop_duplicates()
    for step, group, rank, names, root in columns.itertuples(index=False):
        over = known.get((str(group), int(rank)))
        if over is None:
            continue
        for name in str(names).split(", "):
            found.setdefault((int(step), name), set()).add((over, int(root)))
    return found


def reduced_later(context: Context, one: Replicas, step: int, numel: int, dtype: str) -> bool:
    """Whether these ranks' unequal gradients moved the parameter equally, bit for bit, in a step.

    Then the optimizer did not take them as they are. That they were added up needs a message too that has
    room for them: where parameters are only copied from one rank the others' gradients are lost.
    """
    table = looks(context).get(one.name)
    least = numel * SIZES.get(dtype, 2)
    owners, senders = _of(_owners(context), one, step), _of(_senders(context), one, step)
    to_owner = bool(owners) and senders <= owners
    if one.basis == "start" and (table is None or not (table.index >= 0).any()):
        # How the parameter moved was not asked for: only that they may have been added up is known.
        sent = bool(senders) or _room(_unnamed_from_owners(context), one, step, least)
        return (to_owner and sent) or _room(_unnamed(context), one, step, least)
    if table is None or step not in table.index or not set(one.ranks) <= set(table.columns):
        return False
    after = table.loc[step, list(one.ranks)]
    before = table.loc[table.index < step, one.ranks[0]]
    equal = after.notna().all() and after.nunique() == 1
    if not equal or before.empty or before.iloc[-1] == after.iloc[0]:
        return False
    return (
        to_owner
        or _room(_largest(context), one, step, least)
        or _room(_unnamed_to_owner(context), one, step, least)
    )


def _of(roots: Roots, one: Replicas, step: int) -> set[int]:
    return {root for over, root in roots.get((step, one.name), ()) if set(one.ranks) <= set(over)}


def _room(sizes: Sizes, one: Replicas, step: int, least: int) -> bool:
    return any(
        at == step and set(one.ranks) <= set(over) and size >= least for (at, over), size in sizes.items()
    )
