"""Which ranks hold the same tensor and ought to: by placements, by reductions, by how it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.local_parameters import exchanged, pipelined
from shardtoll.analyzers.findings.replicas.overruled import checked_right
from shardtoll.analyzers.findings.replicas.reductions import clash, covered, mesh_groups
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import kinds
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import SKETCH_COLUMNS

Basis = Literal["placements", "wrapper", "reduced", "start"]

NEAR: Final = 0.1
"""Squared distance over squared size below which two ranks' tensors began as one. Matrices drawn apart are at
2. The chance that eight numbers of a sketch show 0.1 instead is 1 in 20,000 a parameter."""


class Replicas(Struct, frozen=True):
    """Ranks that hold one tensor, which therefore must hold equal values."""

    name: str
    ranks: tuple[int, ...]
    basis: Basis
    """Evidence that they are replicas. It is DTensor placements that say Replicate, or the wrapper or the
    program, which reduces the gradient over these ranks. Or the ranks began with equal values."""
    mesh_dim: str | None = None
    group: str | None = None
    wrapper: str | None = None
    sure: bool = True
    """Whether the basis leaves no other reading."""


@once
def held(context: Context) -> pd.DataFrame:
    """Return one row for each parameter and rank: its shape, placements, wrapper and that one's group.

    From the parameters' table; of those that are not in it, from their values. A tensor that FSDP2 had
    gathered when it was looked at, as after evaluation, is not a plain tensor. Another look shows how it is
    sharded.
    """
    table = context.parameters
    seen = context.values
    placed = table["name"].isin(seen["name"][seen["placements"].notna()])
    gathered = (table["wrapper"] == "FSDP2") & table["placements"].isna() & placed
    names = table["name"][gathered.fillna(False)]
    table = keep(table, ~table["name"].isin(names))
    table = keep(table, table["numel"] > 0)[
        ["name", "rank", "local_shape", "placements", "mesh_dims", "wrapper", "group", "reduced_by_wrapper"]
    ].rename(columns={"local_shape": "shape"})
    values = context.values
    values = keep(values, values["kind"].isin(("parameter", "gradient")) & (values["numel"] > 0))
    values = keep(values, values["placements"].notna() | ~values["name"].isin(names))
    values = values.drop_duplicates(["name", "rank"])[["name", "rank", "shape", "placements", "mesh_dims"]]
    both = pd.concat([table.astype(object), values.astype(object)], ignore_index=True)
    first: pd.DataFrame = both.drop_duplicates(["name", "rank"]).reset_index(drop=True)
    return first


@once
def replicas(context: Context) -> list[Replicas]:
    """Return the sets of ranks that must agree, for each parameter; one a mesh dimension and group of it."""
    sets: list[Replicas] = []
    rows = held(context)
    if rows.empty or rows["rank"].nunique() < 2:
        return sets
    plain = rows["placements"].isna().to_numpy(dtype=bool)
    for name, of_name in keep(rows, ~plain).groupby("name", sort=False):
        sets += _by_placements(context, str(name), of_name)
    plain_rows = keep(rows, plain & (rows["wrapper"].astype(object) != "FSDP1").to_numpy(dtype=bool))
    started = _Start.of(context, sorted({str(name) for name in plain_rows["name"]}))
    for name, of_name in plain_rows.groupby("name", sort=False):
        sets += _of_plain(context, str(name), of_name, started)
    return sets


def _by_placements(context: Context, name: str, rows: pd.DataFrame) -> list[Replicas]:
    """Return the groups along each mesh dimension on which the placements say Replicate."""
    first = rows.iloc[0]
    placed, dims = kinds(text(first["placements"])), _dims(text(first["mesh_dims"]))
    ranks = {int(rank) for rank in rows["rank"]}
    if len(dims) != len(placed):
        # A mesh without names: its dimensions cannot be identified, unless there is only one.
        whole = all(kind == "replicate" for kind in placed) and bool(placed) and not pipelined(context)
        same = tuple(sorted(ranks))
        return [Replicas(name, same, "placements", sure=False)] if whole and len(same) > 1 else []
    sets = []
    for dim, kind in zip(dims, placed, strict=True):
        if kind != "replicate":
            continue
        for group in _along(context, dim, name):
            inside = tuple(sorted(ranks.intersection(group)))
            if len(inside) > 1:
                sets.append(Replicas(name, inside, "placements", mesh_dim=dim))
    return sets


def _along(context: Context, dim: str, name: str) -> list[tuple[int, ...]]:
    """Return the groups along a parameter's mesh dimension.

    If two meshes give it the same name, only ranks over which its gradient was reduced are known to be the
    parameter's.
    """
    groups = mesh_groups(context).get(dim, [])
    if not clash(groups):
        return groups
    reduced_over = covered(context).get(name, set())
    return [group for group in groups if tuple(sorted(group)) in reduced_over]


def _dims(text_of_dims: str | None) -> list[str]:
    return [dim.strip() for dim in (text_of_dims or "").split(",") if dim.strip()]


def _of_plain(context: Context, name: str, rows: pd.DataFrame, started: _Start) -> list[Replicas]:
    """Return the ranks of a plain tensor that belong together: groups that overlap are one."""
    entries: list[tuple[tuple[int, ...], Basis, str | None, str | None]] = []
    groups = context.members
    ranks = {int(rank) for rank in rows["rank"]}
    row: Any
    for row in rows.itertuples(index=False):
        wrapper, group = text(row.wrapper), text(row.group)
        if wrapper is not None and group is not None and not _is_false(row.reduced_by_wrapper):
            over = groups.get((group, int(row.rank)))
            if over is not None:
                entries.append((over, "wrapper", group, wrapper))
    entries += [(over, "reduced", None, None) for over in sorted(covered(context).get(name, ()))]
    if not pipelined(context) and name not in checked_right(context):
        together = started.together(name)
        # Experts of one seed begin equal on all ranks, and each rank has its own. If they are equal in
        # several separate sets, they are copies of several experts.
        if name not in exchanged(context) or len(together) > 1:
            entries += [(over, "start", None, None) for over in together]
    sets = []
    for component in _components(over for over, *_ in entries):
        inside = tuple(sorted(ranks & component))
        if len(inside) < 2:
            continue
        fits = [entry for entry in entries if component >= set(entry[0])]
        whole = [entry for entry in fits if set(entry[0]) == component] or [(inside, "start", None, None)]
        _, basis, group, wrapper = whole[0]
        sets.append(
            Replicas(
                name,
                inside,
                basis,
                mesh_dim=_dim_of(context, inside),
                group=group,
                wrapper=wrapper,
                sure=basis != "start",
            )
        )
    return sets


def _is_false(value: Any) -> bool:
    return not pd.isna(value) and not bool(value)


def _components(sets: Iterable[tuple[int, ...]]) -> list[set[int]]:
    components: list[set[int]] = []
    for members_of in sets:
        joined = set(members_of)
        apart = []
        for other in components:
            if joined & other:
                joined |= other
            else:
                apart.append(other)
        components = [*apart, joined]
    return components


def _dim_of(context: Context, ranks: tuple[int, ...]) -> str | None:
    """Return the mesh dimension that spans exactly these ranks."""
    for dim, groups in mesh_groups(context).items():
        if any(tuple(sorted(group)) == ranks for group in groups):
            return dim
    return None


class _Start(Struct, frozen=True):
    """How plain parameters began: which ranks held equal values at the first look."""

    equal: dict[str, list[tuple[int, ...]]]
    weak: frozenset[str]
    """Vectors, and tensors of one value throughout: biases and norms begin equal, whatever they are."""
    modules: dict[str, list[tuple[int, ...]]]
    """By module: how the first of the others in it divides the ranks."""
    usual: tuple[tuple[int, ...], ...]
    """How most of the others divide the ranks."""

    def together(self, name: str) -> list[tuple[int, ...]]:
        """Return the sets of ranks that began equal and are no accident.

        A value that proves little is a replica if the matrices of its module are. If there are none, as in a
        norm, it is one if it is equal too and most of the model's matrices are replicas.
        """
        if name not in self.weak:
            return self.equal.get(name, [])
        module = name.rpartition(".")[0]
        if module in self.modules:
            return self.modules[module]
        mine = self.equal.get(name, [])
        if not self.usual:
            return mine
        return [over for over in self.usual if any(set(over) <= set(ranks) for ranks in mine)]

    @classmethod
    def of(cls, context: Context, names: list[str]) -> _Start:
        values = context.values
        values = keep(values, (values["kind"] == "parameter") & values["name"].isin(names))
        values = keep(values, values["placements"].isna() & (values["numel"] > 0))
        # Values from before the first step have no step.
        values = values.assign(order=values["step"].fillna(-1)).sort_values("order", kind="stable")
        first = values.drop_duplicates(["name", "rank"])
        equal: dict[str, list[tuple[int, ...]]] = {}
        modules: dict[str, list[tuple[int, ...]]] = {}
        weak = set()
        for label, rows in first.groupby("name", sort=False, observed=True):
            name = str(label)
            equal[name] = _alike(rows)
            if bool(rows["constant"].astype(bool).any()) or "," not in str(rows["shape"].iloc[0]):
                weak.add(name)
            else:
                modules.setdefault(name.rpartition(".")[0], equal[name])
        divisions = Counter(tuple(alike) for name, alike in equal.items() if name not in weak and alike)
        return cls(equal, frozenset(weak), modules, divisions.most_common(1)[0][0] if divisions else ())


def _alike(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the ranks that hold one tensor of equal shape, by equal values or nearly equal ones.

    A rank belongs to the first class whose first rank it is like. A rank whose values equal an earlier rank's
    joins that one's class, so only different ones are compared.
    """
    sketches = rows[list(SKETCH_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        sizes = np.mean(sketches**2, axis=1)
    shapes = pd.factorize(rows["shape"].astype(str))[0]
    prints = pd.factorize(rows["hash"])[0]  # -1: not known
    classes: list[list[int]] = []
    leaders = np.empty(len(rows), dtype=np.intp)
    placed: dict[tuple[int, int, bytes], int] = {}
    for row in range(len(rows)):
        key = (int(shapes[row]), int(prints[row]), sketches[row].tobytes())
        number = placed.get(key) if prints[row] >= 0 else None
        if number is None:
            leading = leaders[: len(classes)]
            same = (prints[leading] == prints[row]) & (prints[row] >= 0)
            with np.errstate(invalid="ignore", over="ignore"):
                apart = np.mean((sketches[leading] - sketches[row]) ** 2, axis=1)
                near = apart < NEAR * (sizes[leading] + sizes[row]) / 2
            fits = np.flatnonzero((shapes[leading] == shapes[row]) & (same | near))
            number = int(fits[0]) if len(fits) else len(classes)
            placed[key] = number
        if number == len(classes):
            leaders[number] = row
            classes.append([])
        classes[number].append(row)
    ranks = rows["rank"].to_numpy(dtype=np.int64)
    return [
        tuple(sorted(int(ranks[member]) for member in equal_rows))
        for equal_rows in classes
        if len(equal_rows) > 1
    ]
