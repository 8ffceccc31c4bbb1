"""Gradients that are a part as they are held and are added up elsewhere.

Examples are ZeRO's one flat buffer, or `reduce`, which leaves the sum with the rank that owns the parameter.
The owner updates it and sends it to the others.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.averages import verdict
from shardtoll.analyzers.findings.replicas.reductions import BACKWARD, REDUCES
from shardtoll.analyzers.findings.replicas.replicas import Replicas
from shardtoll.analyzers.findings.replicas.value_sums import adds_floats, looks
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep

SIZES: Final = {"float64": 8, "float32": 4}
"""Bytes of an element; the other dtypes of gradients have two."""

TO_OWNER: Final = ("reduce",)
FROM_OWNERS: Final = ("broadcast", "all_gather")

Sizes = dict[tuple[int, tuple[int, ...]], dict[int, int]]
"""Bytes of the largest message by step and ranks, and of those by root; `NO_ROOT` of what has none."""
Roots = dict[tuple[int, str], set[tuple[tuple[int, ...], int]]]

NO_ROOT: Final = -1


@once
def _largest(context: Context) -> Sizes:
    """Return for each step and set of ranks the largest message that added something up after forward."""
    return _sizes(context, context.in_steps, REDUCES)


@once
def _unnamed(context: Context) -> Sizes:
    """Return the same of the messages that name no parameter, as those of one flat buffer."""
    return _sizes(context, _nameless(context), REDUCES)


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
    frame = keep(frame, frame["message_bytes"].notna() & adds_floats(frame))
    ranks_of = context.members
    sizes: Sizes = {}
    columns = frame[["step", "group", "rank", "message_bytes", "root"]].drop_duplicates()
    for step, group, rank, size, root in columns.itertuples(index=False):
        over = ranks_of.get((str(group), int(rank)))
        if over is not None:
            of_roots = sizes.setdefault((int(step), over), {})
            by = NO_ROOT if pd.isna(root) else int(root)
            of_roots[by] = max(of_roots.get(by, 0), int(size))
    return sizes


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
    frame = keep(frame, frame["parameter"].notna() & frame["root"].notna() & adds_floats(frame))
    ranks_of = context.members
    roots: Roots = {}
    columns = frame[["step", "group", "rank", "parameter", "root"]].drop_duplicates()
    for step, group, rank, names, root in columns.itertuples(index=False):
        over = ranks_of.get((str(group), int(rank)))
        if over is None:
            continue
        for name in str(names).split(", "):
            roots.setdefault((int(step), name), set()).add((over, int(root)))
    return roots


def reduced_later(context: Context, copies: Replicas, step: int, numel: int, dtype: str) -> bool:
    """Whether these ranks' unequal gradients moved the parameter equally, bit for bit, in a step.

    Then the optimizer did not take them as they are. A message with room for them must also add them up. If
    parameters are only copied from one rank, the others' gradients are lost. So what was added up for one
    rank has to come from that one. If each rank's values were added up instead, and not divided, they are
    equal and wrong.
    """
    table = looks(context).get(copies.name)
    least = numel * SIZES.get(dtype, 2)
    owned = _owned(context, copies, step, least)
    if not _looked(context, copies):
        # How the parameter moved was not asked for: only that they may have been added up is known.
        return copies.basis == "start" and (owned or _room(_unnamed(context), copies, step, least))
    if table is None or step not in table.index or not set(copies.ranks) <= set(table.columns):
        return False
    after = table.loc[step, list(copies.ranks)]
    before = table.loc[table.index < step, copies.ranks[0]]
    equal = after.notna().all() and after.nunique() == 1
    if not equal or before.empty or before.iloc[-1] == after.iloc[0]:
        return False
    if verdict(context, copies.ranks, step, copies.name) == "sum":
        return False
    return owned or _room(_largest(context), copies, step, least)


def _looked(context: Context, copies: Replicas) -> bool:
    table = looks(context).get(copies.name)
    return table is not None and bool((table.index >= 0).any())


def _owned(context: Context, copies: Replicas, step: int, least: int) -> bool:
    """Whether a rank that got the sum sent what has room for the parameter, and no other rank sent it."""
    owners, senders = _of(_owners(context), copies, step), _of(_senders(context), copies, step)
    owners = owners or _roots_with_room(_unnamed_to_owner(context), copies, step, least)
    if senders:
        return senders <= owners
    senders = _roots_with_room(_unnamed_from_owners(context), copies, step, least)
    return bool(owners) and bool(senders & {*owners, NO_ROOT})


def _of(roots: Roots, copies: Replicas, step: int) -> set[int]:
    return {root for over, root in roots.get((step, copies.name), ()) if set(copies.ranks) <= set(over)}


def _room(sizes: Sizes, copies: Replicas, step: int, least: int) -> bool:
    return bool(_roots_with_room(sizes, copies, step, least))


def _roots_with_room(sizes: Sizes, copies: Replicas, step: int, least: int) -> set[int]:
    return {
        root
        for (step_of_size, over), of_roots in sizes.items()
        if step_of_size == step and set(copies.ranks) <= set(over)
        for root, size in of_roots.items()
        if size >= least
    }
