"""Which mesh dimensions or process groups a set of ranks makes up, and how a reader calls it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardtoll.analyzers.words import ranks as rank_words
from shardtoll.ledger import Group, Ledger

Ranks = tuple[int, ...]


def mesh_dims(ledger: Ledger, ranks: Ranks) -> str | None:
    """Return the mesh dims that the ranks are all of, comma separated; None where they are of none.

    One dim that has them all goes before several that do only together, as a flattened `dp_cp`.
    """
    inside: dict[str, int] = {}
    wanted = set(ranks)
    outside = set()
    for group in ledger.groups:
        if group.mesh_dim is None or wanted.isdisjoint(group.ranks):
            continue
        if wanted.issuperset(group.ranks):
            inside[group.mesh_dim] = group.size
        else:
            outside.add(group.mesh_dim)
    whole = {dim: size for dim, size in inside.items() if dim not in outside and size > 1}
    for dim, size in whole.items():
        if size == len(ranks):
            return dim
    return ",".join(whole) if math.prod(whole.values()) == len(ranks) and whole else None


def group_of(ledger: Ledger, ranks: Ranks) -> Group | None:
    """Return the group of just these ranks; None where there is none."""
    wanted = set(ranks)
    return next((group for group in ledger.groups if set(group.ranks) == wanted), None)


def sets_along(ledger: Ledger, dims: Iterable[str]) -> list[Ranks]:
    """Return the sets of ranks that differ along these mesh dims only; empty where groups do not tell."""
    sets: list[set[int]] = []
    wanted = set(dims)
    for group in ledger.groups:
        if group.mesh_dim not in wanted:
            continue
        touching = [found for found in sets if not found.isdisjoint(group.ranks)]
        sets = [found for found in sets if found.isdisjoint(group.ranks)]
        sets.append(set(group.ranks).union(*touching))
    return sorted(tuple(sorted(found)) for found in sets)


def listed(sets: Sequence[Ranks]) -> str:
    """Return sets of ranks as `ranks 0-1; ranks 2-3`."""
    return "; ".join(rank_words(ranks) for ranks in sets)
