"""Which operators did what others did too: on other ranks by placements or values, on their own by values.

And which mesh dimensions or groups such ranks make up. Ranks whose gradients were equal before they were
reduced computed the same in everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import Codes, begins_with, codes, keep, numbered
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Group, Ledger
from shardtoll.ledger.words.human import ranks as rank_words

Ranks = tuple[int, ...]


def mesh_dims(ledger: Ledger, ranks: Ranks) -> str | None:
    """Return the mesh dims that all these ranks share, comma separated; None if they share none.

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
    """Return the group of exactly these ranks; None if there is none."""
    wanted = set(ranks)
    return next((group for group in ledger.groups if set(group.ranks) == wanted), None)


def sets_along(ledger: Ledger, dims: Iterable[str]) -> list[Ranks]:
    """Return the sets of ranks that differ along these mesh dims only; empty if groups do not show them."""
    sets: list[set[int]] = []
    wanted = set(dims)
    for group in ledger.groups:
        if group.mesh_dim not in wanted:
            continue
        touching = [ranks for ranks in sets if not ranks.isdisjoint(group.ranks)]
        sets = [ranks for ranks in sets if ranks.isdisjoint(group.ranks)]
        sets.append(set(group.ranks).union(*touching))
    return sorted(tuple(sorted(ranks)) for ranks in sets)


def listed(sets: Sequence[Ranks]) -> str:
    """Return sets of ranks as `ranks 0-1; ranks 2-3`."""
    return "; ".join(rank_words(ranks) for ranks in sets)


OPERATOR = ("step", "op", "phase", "module", "shapes", "flops")
"""Columns in which operators of two ranks must agree to be the same one, in addition to order and values."""

CALL = ("op", "phase", "module", "parameter", "source")
"""Columns in which calls from the same place in the program agree, whenever they are made."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """For each row of a frame of operators, how it is known to be the same work as others'."""

    factor: Codes
    """On how many ranks it was done; 1 if only on its own."""
    place: Codes
    """Number of the sets of ranks in `sets`; -1 where the factor is 1."""
    sets: list[tuple[Ranks, ...]]
    """Sets of ranks of which each did the same."""
    over: list[str | None]
    """Mesh dims, comma separated, of each of `sets`."""


def _size(context: Context, dim: str) -> int | None:
    """Return the size of a mesh dimension, from the mesh or else from its groups; None unknown."""
    size = context.ledger.run.mesh.get(dim)
    sizes = {group.size for group in context.ledger.groups if group.mesh_dim == dim}
    return size if size is not None else sizes.pop() if len(sizes) == 1 else None


def by_placement(context: Context, frame: pd.DataFrame) -> Repeats:
    """Return what DTensor placements say: an operator of replicated inputs is done by a whole mesh dim."""
    number, first = codes(frame, ["replicated_over"])
    factor, sets, over = np.ones(len(first) + 1, dtype=np.int64), [], []
    for code, dims in enumerate(first["replicated_over"] if len(first) else ()):
        names = [] if pd.isna(dims) else [dim.strip() for dim in str(dims).split(",") if dim.strip()]
        sizes = {dim: size for dim in names if (size := _size(context, dim)) is not None}
        factor[code] = math.prod(sizes.values())
        sets.append(tuple(sets_along(context.ledger, sizes)))
        over.append(",".join(sizes) or None)
    factors = factor[number]
    return Repeats(factors, np.where(factors > 1, number, -1), sets, over)


def by_value(context: Context, frame: pd.DataFrame) -> Repeats:
    """Return what fingerprints say: the same operator in the same order, of equal inputs and outputs.

    Operators of constant tensors and those without fingerprints prove nothing, but keep their
    place in the order.
    """
    placed = frame.reset_index(drop=True).sort_values(["rank", "step", "index"], kind="stable")
    operator = numbered(placed, [*OPERATOR, "rank"])
    nth = pd.Series(operator, index=placed.index).groupby(operator).cumcount()
    usable = keep(placed.assign(nth=nth), telling(placed))
    same = numbered(usable, [*OPERATOR, "nth", "input_hash", "output_hash"])
    counts = np.bincount(same, minlength=1)[same] if len(same) else same
    usable, same = keep(usable, counts > 1), same[counts > 1]
    factor, place = np.ones(len(frame), dtype=np.int64), np.full(len(frame), -1, dtype=np.int64)
    if usable.empty:
        return Repeats(factor, place, [], [])
    # A set of ranks by one number: the sum of a weight of each, modulo 2**64. Ranks come once in a set.
    weights = np.random.default_rng(0).integers(1, 2**63, size=context.ledger.run.world_size, dtype=np.int64)
    sums = np.zeros(int(same.max()) + 1, dtype=np.int64)
    np.add.at(sums, same, weights[usable["rank"].to_numpy(dtype=np.int64)])
    _, example, set_of = np.unique(sums[same], return_index=True, return_inverse=True)
    ranks = usable["rank"].to_numpy(dtype=np.int64)
    sets = [tuple(sorted(ranks[same == same[first_row]].tolist())) for first_row in example]
    # The pairs along a mesh dim are one place: what each of them did, each of them did twice.
    number, places, over = _merged(sets, [mesh_dims(context.ledger, members) for members in sets])
    rows = usable.index.to_numpy()
    factor[rows], place[rows] = counts[counts > 1], number[set_of]
    return Repeats(factor, place, places, over)


def _merged(
    sets: list[Ranks], named: list[str | None]
) -> tuple[Codes, list[tuple[Ranks, ...]], list[str | None]]:
    """Return for each set the number of its place, the sets of each place and its mesh dims.

    Disjoint sets along one mesh dim, or else of one size, are one place.
    """
    number = np.zeros(len(sets), dtype=np.int64)
    places: list[list[Ranks]] = []
    over: list[str | None] = []
    for index in sorted(range(len(sets)), key=lambda index: (named[index] is None, sets[index])):
        taken = set(sets[index])
        for code, place in enumerate(places):
            alike = over[code] == named[index] and len(place[0]) == len(sets[index])
            if alike and all(taken.isdisjoint(other) for other in place):
                break
        else:
            code = len(places)
            places.append([])
            over.append(named[index])
        places[code].append(sets[index])
        number[index] = code
    return number, [tuple(sorted(place)) for place in places], over


def telling(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return of which rows the values prove something."""
    has_values: pd.Series[bool] = frame["input_hash"].notna() & frame["output_hash"].notna()
    return has_values & ~frame["constant"].astype(bool)


def again_on_one_rank(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the matmuls that their rank has done before with the same inputs, with `first_source`.

    Only matmuls within one pass of one phase, in the same module with the same parameter. Layers that start
    with equal weights are different layers. Recomputing is left out. In some schedules passes of equal
    micro-batches follow one another. If every call of a stretch is made equally often, none is returned.
    """
    frame = keep(frame, (frame["work"] == "matmul") & ~frame["phase"].isin(("recompute", "optimizer")))
    frame = frame.sort_values(["rank", "step", "index"], kind="stable")
    if frame.empty:
        frame["first_source"] = pd.array([], dtype="string")
        return frame
    turn = (frame[["rank", "step", "phase"]] != frame[["rank", "step", "phase"]].shift()).any(axis=1)
    call = numbered(frame, CALL)
    frame = frame.assign(stretch=turn.cumsum(), call=call)
    often = frame.groupby(["stretch", "call"])["op"].transform("size")
    least = often.groupby(frame["stretch"]).transform("min")
    whole = (often % least == 0).groupby(frame["stretch"]).transform("all") & (least > 1)
    frame = keep(frame, telling(frame) & ~whole)
    same = ["stretch", "op", "module", "parameter", "shapes", "input_hash", "output_hash"]
    number = numbered(frame, same)
    grouped = frame.groupby(number)
    again = frame.assign(first_source=grouped["source"].transform("first"))
    repeated: pd.DataFrame = keep(again, grouped.cumcount() > 0)
    return repeated


def group_name(context: Context, sets: tuple[Ranks, ...]) -> str | None:
    """Return the name of the process group of exactly these ranks; None if they form several, none or all."""
    part = len(sets) == 1 and len(sets[0]) < context.ledger.run.world_size
    group = group_of(context.ledger, sets[0]) if part else None
    return None if group is None else group.name


REDUCTIONS: Final = ("all_reduce", "reduce_scatter")

MOST: Final = 0.9
"""Share of the reduced bytes, and of what is multiplied, that is equal if the data are. A few gradients are
so whatever the data, as that of a penalty on weights."""


def same_gradients(context: Context) -> list[Ranks]:
    """Return the sets of ranks that had the same gradients in the surveyed steps, before reducing them.

    Only what a wrapper reduces, or what is known to be a parameter's gradient, says so.
    """
    frame = context.in_surveyed
    of_gradient = frame["parameter"].notna() | begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
    frame = keep(
        frame,
        frame["op"].isin(REDUCTIONS)
        & (frame["phase"] == "backward")
        & (frame["group_size"] > 1)
        & frame["input_hash"].notna()
        & frame["message_bytes"].notna()
        & frame["match_id"].notna()
        & of_gradient,
    )
    if frame.empty:
        return []
    by_match = frame.groupby("match_id").agg(
        different=("input_hash", "nunique"),
        ranks=("rank", "nunique"),
        size=("group_size", "first"),
        group=("group_id", "first"),
        moved=("message_bytes", "first"),
    )
    by_match = by_match[by_match["ranks"] == by_match["size"]]
    equal = by_match["moved"].where(by_match["different"] == 1, 0).groupby(by_match["group"]).sum()
    whole = by_match["moved"].groupby(by_match["group"]).sum()
    groups = whole.index[(whole > 0) & (equal >= MOST * whole)]
    return [tuple(sorted(context.matches.members[int(group)])) for group in groups]
