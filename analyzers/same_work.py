"""Which operators did what others did too: on other ranks by placements or values, on their own by values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.over_ranks import Ranks, group_of, mesh_dims, sets_along
from shardtoll.analyzers.tally import Codes, codes, keep, numbered

OPERATOR = ("step", "op", "phase", "module", "shapes", "flops")
"""What operators of two ranks must share to be the same one, beside order and values."""

CALL = ("op", "phase", "module", "parameter", "source")
"""What the same call of a program's text has in common, whenever it is made."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """For each row of a frame of operators, how it is known to be the same work as others'."""

    factor: Codes
    """On how many ranks it was done; 1 where only on its own."""
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
        known = {dim: size for dim in names if (size := _size(context, dim)) is not None}
        factor[code] = math.prod(known.values())
        sets.append(tuple(sets_along(context.ledger, known)))
        over.append(",".join(known) or None)
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
    usable = keep(placed.assign(nth=nth), _telling(placed))
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
    sets = [tuple(sorted(ranks[same == same[at]].tolist())) for at in example]
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
    for at in sorted(range(len(sets)), key=lambda at: (named[at] is None, sets[at])):
        taken = set(sets[at])
        for code, place in enumerate(places):
            alike = over[code] == named[at] and len(place[0]) == len(sets[at])
            if alike and all(taken.isdisjoint(other) for other in place):
                break
        else:
            code = len(places)
            places.append([])
            over.append(named[at])
        places[code].append(sets[at])
        number[at] = code
    return number, [tuple(sorted(place)) for place in places], over


def _telling(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return of which rows the values prove something."""
    known: pd.Series[bool] = frame["input_hash"].notna() & frame["output_hash"].notna()
    return known & ~frame["constant"].astype(bool)


def again_on_one_rank(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the matmuls that their rank has done before with the same inputs, with `first_source`.

    Only within one pass of one phase, and in the same module with the same parameter: layers that start with
    equal weights are different layers. Recomputing is left out. Passes of equal micro-batches come one right
    after another in some schedules: where every call of a stretch is made equally often, nothing is said.
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
    frame = keep(frame, _telling(frame) & ~whole)
    same = ["stretch", "op", "module", "parameter", "shapes", "input_hash", "output_hash"]
    number = numbered(frame, same)
    grouped = frame.groupby(number)
    again = frame.assign(first_source=grouped["source"].transform("first"))
    repeated: pd.DataFrame = keep(again, grouped.cumcount() > 0)
    return repeated


def group_name(context: Context, sets: tuple[Ranks, ...]) -> str | None:
    """Return the name of the process group that the ranks are; None where they are several, none or all."""
    part = len(sets) == 1 and len(sets[0]) < context.ledger.run.world_size
    group = group_of(context.ledger, sets[0]) if part else None
    return None if group is None else group.name
