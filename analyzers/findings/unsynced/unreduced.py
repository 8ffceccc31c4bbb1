"""Parameters that no reduction carries, by the records' structure alone: no value has been looked at.

An optimizer used their gradients in a step in which ranks reduced the gradients of others. Whatever leaves a
doubt keeps it silent: messages whose parameters nobody knows, ranks that may hold other layers or other parts
of one, collectives that are not on record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import rows_of
from shardtoll.analyzers.findings.replicas.overruled import checked_right
from shardtoll.analyzers.findings.unsynced.carriers import least_bytes, named, unknown_bytes
from shardtoll.analyzers.findings.unsynced.gradient_groups import Reducing, reducing
from shardtoll.analyzers.findings.unsynced.not_replicas import may_differ, spread_over
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep, text


class Unreduced(Struct, frozen=True):
    """Parameters that these ranks train each for itself."""

    names: tuple[str, ...]
    group: Reducing
    ranks: tuple[int, ...]
    """The ranks of all groups over which they are missing."""
    wrapper: str | None
    """The wrapper that has them and does not reduce them; None if none has."""
    others: int | None
    """Parameters whose gradients are reduced over the group; None if only the wrapper knows which of its own
    it reduces."""
    ignored: bool
    """Whether the program had the wrapper ignore them, by a list."""


def unreduced(context: Context, but: Collection[str] = ()) -> list[Unreduced]:
    """Return the parameters that no reduction carries; `but`: those of which values have said it already."""
    candidates = _candidates(context)
    # Equal gradients, or different ones, say more than who reduced them.
    judged = {*but, *checked_right(context), *rows_of(context, "gradient")["name"].astype(str)}
    names = set(candidates["name"].astype(str)) - judged
    if not names:
        return []
    missing: dict[str, list[Reducing]] = {}
    for group in reducing(context):
        for name in _missing(context, group) if names else ():
            if name in names:
                missing.setdefault(name, []).append(group)
    ignored = set(keep(candidates, candidates["ignored"].fillna(False).astype(bool))["name"].astype(str))
    together: dict[tuple[bool, tuple[tuple[int, ...], ...]], list[str]] = {}
    for name, groups in missing.items():
        together.setdefault((name in ignored, tuple(group.over for group in groups)), []).append(name)
    return [_unreduced(context, of, missing[of[0]], listed) for (listed, _), of in together.items()]


def _unreduced(
    context: Context, names: Sequence[str], groups: Sequence[Reducing], ignored: bool
) -> Unreduced:
    group = max(groups, key=lambda each: len(each.over))
    rows = keep(context.model, context.model["name"].isin(names))
    wrapper = rows["wrapper"].dropna()
    return Unreduced(
        names=tuple(names),
        group=group,
        ranks=tuple(sorted({rank for each in groups for rank in each.over})),
        wrapper=None if wrapper.empty else str(wrapper.iloc[0]),
        others=_others(context, group),
        ignored=ignored,
    )


@once
def _used(context: Context) -> pd.DataFrame:
    """Return the trained parameters whose gradients an optimizer used in a surveyed step, by rank."""
    table = context.model
    trained = table["requires_grad"].astype(bool) & table["tied_to"].isna() & (table["numel"] > 0)
    return keep(table, trained & table["used_in"].notna())


@once
def _candidates(context: Context) -> pd.DataFrame:
    """Return the rows of those of them that no wrapper reduces and no collective names."""
    table = _used(context)
    by_wrapper = table["wrapper"].notna() & (table["reduced_by_wrapper"] != False).fillna(True)  # noqa: E712
    reduced_somewhere = set(table["name"][by_wrapper].astype(str))
    return keep(table, ~table["name"].isin(reduced_somewhere | named(context)))


def _missing(context: Context, group: Reducing) -> list[str]:
    """Return the parameters that ought to be reduced over the group, and are not."""
    rows = _on_all(_candidates(context), group.over)
    rows = keep(rows, rows["used_in"].isin(group.steps))
    rows = _on_all(rows, group.over)
    if rows.empty or not _is_usual(context, group):
        return []
    if may_differ(context, group.over) or not _alike(context, group.over) or not _complete(context, group):
        return []
    unknown = unknown_bytes(context, group.over)
    names = []
    for name, of_name in rows.groupby("name", sort=False, observed=True):
        if of_name["local_shape"].nunique() > 1 or unknown >= least_bytes(str(of_name["shape"].iloc[0])):
            continue
        if not any(_is_spread(context, row, group.over) for row in of_name.itertuples(index=False)):
            names.append(str(name))
    return names


def _is_spread(context: Context, row: object, over: tuple[int, ...]) -> bool:
    if text(getattr(row, "placements", None)) is None:
        return False
    return spread_over(context, text(getattr(row, "mesh_dims", None)), over)


def _on_all(rows: pd.DataFrame, over: tuple[int, ...]) -> pd.DataFrame:
    """Return the rows, on the ranks of the group, of the parameters that all of them have."""
    rows = keep(rows, rows["rank"].isin(over))
    if rows.empty:
        return rows
    return keep(rows, rows.groupby("name", observed=True)["rank"].transform("nunique") == len(over))


def _is_usual(context: Context, group: Reducing) -> bool:
    """Whether the group is that of gradients as a rule: a wrapper's, or that of half of them or more."""
    if group.wrapper is not None:
        return True
    used = _on_all(_used(context), group.over)
    plain = set(used["name"][(used["reduced_by_wrapper"] != True).fillna(True)].astype(str))  # noqa: E712
    return 2 * len(plain & group.names) >= len(plain)


def _others(context: Context, group: Reducing) -> int | None:
    by_hand = group.names & set(_on_all(_used(context), group.over)["name"].astype(str))
    if group.wrapper is None:
        return len(by_hand)
    # With FSDP1 not every rank has a part of each.
    table = keep(context.model, context.model["rank"].isin(group.over) & context.model["requires_grad"])
    if (table["wrapper"].notna() & table["reduced_by_wrapper"].isna()).any():
        return None
    return len(
        by_hand | set(table["name"][table["reduced_by_wrapper"].fillna(False).astype(bool)].astype(str))
    )


def _alike(context: Context, over: tuple[int, ...]) -> bool:
    """Whether the ranks hold parameters of equal names, whole shapes and dtypes."""
    held = _held(context)
    return all(rank in held for rank in over) and len({held[rank] for rank in over}) == 1


@once
def _held(context: Context) -> dict[int, frozenset[tuple[str, str, str]]]:
    """Return name, whole shape and dtype of the parameters on record of each rank."""
    rows = context.model
    columns = [rows[name].astype(str) for name in ("name", "shape", "dtype")]
    held: dict[int, set[tuple[str, str, str]]] = {}
    for rank, *each in zip(rows["rank"].tolist(), *columns, strict=True):
        held.setdefault(int(rank), set()).add((each[0], each[1], each[2]))
    return {rank: frozenset(each) for rank, each in held.items()}


def _complete(context: Context, group: Reducing) -> bool:
    """Whether all collectives of the group's ranks are on record, as far as their groups count them."""
    counts = context.counts
    counts = keep(counts, counts["rank"].isin(group.over) & counts["step"].isin(context.steps))
    return not (counts["issued"] > counts["recorded"]).fillna(False).any()
