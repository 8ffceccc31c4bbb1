"""Sharded parameters whose parts began equal on all ranks: made with one seed, shard by shard."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.reductions import clash, mesh_groups
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import kinds
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Where
from shardtoll.ledger.words.human import ranks as rank_words
from shardtoll.ledger.words.names import shortened

MOST: Final = 0.5
"""Part of the sharded parameters that must be identical. Heads that are repeated for more ranks, as those of
keys and values, are fewer."""

NAMED: Final = 3
"""Parameters that a title names."""

STACKED: Final = 3
"""Dimensions of a stack of matrices: copies of one expert begin equal on purpose, and so do their biases."""


@once
def identical(context: Context) -> dict[str, dict[str, set[int]]]:
    """Return by mesh dimension the parameters whose parts began equal along it, each with its ranks."""
    values = context.values
    shards = keep(values, (values["kind"] == "shard") & values["hash"].notna())
    by_dim: dict[str, dict[str, set[int]]] = {}
    looked_at: dict[str, int] = {}
    stacked = shards["shape"].astype(str).str.count(",") == STACKED - 1
    # Biases of a stack of experts have the same owner as their matrices.
    stacks = {_owner(name) for name in shards.loc[stacked.to_numpy(dtype=bool), "name"].unique()}
    for name, rows in shards.groupby("name", sort=False, observed=True):
        first = rows.iloc[0]
        if _owner(name) in stacks or bool(rows["constant"].astype(bool).any()):
            continue
        parts = _parts(rows)
        for dim in _sharded_over(first):
            groups = mesh_groups(context).get(dim, [])
            if not groups or clash(groups):
                continue
            looked_at[dim] = looked_at.get(dim, 0) + 1
            if all(_equal(parts, group) for group in groups):
                ranks = {rank for group in groups for rank in group}
                by_dim.setdefault(dim, {})[str(name)] = ranks
    return {dim: names for dim, names in by_dim.items() if len(names) >= MOST * looked_at[dim]}


def _owner(name: object) -> str:
    """Return the module that has the parameter."""
    return str(name).rpartition(".")[0]


def _sharded_over(row: pd.Series[Any]) -> list[str]:
    """Return the mesh dimensions along which the placements cut the parameter."""
    dims = [dim.strip() for dim in (text(row["mesh_dims"]) or "").split(",") if dim.strip()]
    placed = kinds(text(row["placements"]))
    return [dim for dim, kind in zip(dims, placed, strict=False) if "shard" in kind.lower()]


_Parts = dict[int, tuple[set[Any], set[str]]]
"""Rank -> the known hashes of its part of a parameter, and its shapes."""


def _parts(rows: pd.DataFrame) -> _Parts:
    parts: _Parts = {}
    columns = (rows[name].tolist() for name in ("rank", "hash", "shape"))
    for rank, value, shape in zip(*columns, strict=True):
        hashes, shapes = parts.setdefault(rank, (set(), set()))
        if not pd.isna(value):
            hashes.add(value)
        shapes.add(str(shape))
    return parts


def _equal(parts: _Parts, group: tuple[int, ...]) -> bool:
    """Return whether each rank of a group has a part, and all that is known of them is one."""
    if len(group) < 2 or not parts.keys() >= set(group):
        return False
    hashes, shapes = (set().union(*(parts[rank][at] for rank in group)) for at in (0, 1))
    return len(hashes) == 1 and len(shapes) == 1


def find(context: Context) -> list[Finding]:
    """Return one finding a mesh dimension. Equal parts compute equal things: it is no reduction's fault."""
    return [_finding(context, dim, names) for dim, names in identical(context).items()]


def _finding(context: Context, dim: str, names: dict[str, set[int]]) -> Finding:
    ranks = tuple(sorted(set().union(*names.values())))
    several = list(names)
    shown = shortened(several, NAMED)
    subject = several[0] if len(several) == 1 else f"{len(several)} sharded parameters ({shown})"
    lasting = _still(context, dim, several)
    confidence: Confidence = "certain" if lasting else "likely"
    return Finding(
        kind="identical-shards",
        severity="warning",
        title=f"the parts of {subject} began identical on {rank_words(ranks)} along mesh dim {dim}"
        f"{', and they still are' if lasting else ''}: each rank drew them with the same seed",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=len(several),
        ranks=ranks,
        where=Where.of_parameter(several[0]) if len(several) == 1 else Where(mesh_dim=dim),
        evidence=(
            Evidence("shown by", "equal fingerprints of each rank's part before the first step"),
            Evidence("mesh dimension", dim),
            *((Evidence("parameters", ", ".join(several)),) if len(several) > 1 else ()),
        ),
        remedy=Remedy(
            "Create each weight once as a whole and shard it: parts that begin identical stay copies if "
            "they see equal inputs. A model on the meta device may instead reset its parameters after it "
            "is parallelized.",
            "torch.manual_seed(seed)  # equal on all ranks\n"
            "whole = build_model()  # not on the meta device, not parallelized\n"
            "options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)\n"
            "set_model_state_dict(model, whole.state_dict(), options=options)",
        ),
        confidence=confidence,
        parameters=tuple(several) if len(several) > 1 else (),
    )


def _still(context: Context, dim: str, names: list[str]) -> bool:
    """Return whether the last look at the parameters found the parts equal, although they had moved."""
    values = context.values
    rows = keep(values, (values["kind"] == "parameter") & values["step"].notna() & values["name"].isin(names))
    if rows.empty:
        return False
    before = keep(values, (values["kind"] == "shard") & values["name"].isin(names))
    rows = keep(rows, rows["step"] == rows["step"].max())
    if set(rows["hash"].dropna()) & set(before["hash"].dropna()) or rows["square"].isna().any():
        return False
    groups = mesh_groups(context)[dim]
    every = [_parts(of_name) for _, of_name in rows.groupby("name", observed=True)]
    return len(every) == len(names) and all(_equal(parts, group) for parts in every for group in groups)
