"""The whole gradient of each parameter, from what each rank holds of it: sketches of shards add up."""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from shardtoll.analyzers.shared.placements import kinds
from shardtoll.ledger import SKETCH_COLUMNS, Report
from shardtoll.ledger.tables.tables import to_frame

KEYS: Final = ("step", "name")
Numbers = npt.NDArray[np.float64]

_COLUMNS: Final = list(SKETCH_COLUMNS)
_SAME: Final = 1e-6
"""Sketches as close as this, relatively, are of the same values: replicas are copies of each other."""


def gradients(report: Report) -> pd.DataFrame:
    """Return the rows of the values' table that are gradients inside a step, sketches as plain floats.

    If a rank looked at a parameter more than once in a step, the last look counts. `finite` says whether the
    sketch is known; a shard without elements is zero.
    """
    table = report.tables["values"]
    table = table.filter(
        pc.and_(pc.equal(table.column("kind"), "gradient"), pc.is_valid(table.column("step")))
    )
    frame: pd.DataFrame = to_frame(table).sort_values(["step", "name", "rank", "nth"], kind="stable")
    frame = frame.drop_duplicates(["step", "name", "rank"], keep="last").reset_index(drop=True)
    empty = (frame["numel"] == 0).to_numpy(dtype=bool)
    sketches = frame[_COLUMNS].to_numpy(dtype=np.float64, na_value=np.nan)
    sketches[empty] = 0.0
    frame[_COLUMNS] = sketches
    frame["finite"] = np.isfinite(sketches).all(axis=1)
    frame["step"] = frame["step"].astype("int64")
    return frame


def wholes(report: Report, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row a step and parameter, indexed by both: the sketch of its whole gradient.

    Further columns: `norm` of the whole gradient, estimated if parts of it are still to be added up; `dims`,
    the dimensions it was sketched by; `covered`, the elements of its different shards. `numel` is the whole's
    number of elements from the parameters' table, or `covered` if that table has none. `spread` is how far
    replicas of a shard lie apart, relative to the norm. `disagree` says whether plain tensors of the whole's
    size differ between ranks. The last two are `dtype` and `finite`.

    A shard is identified by the rank's place on the mesh dimensions that the placements shard or leave
    partial. Replicas of a shard count once, by the lowest rank. For plain tensors, and if that place is
    unknown, equal sketches are replicas. A sketch depends on global positions, so different shards have
    different sketches.
    """
    if frame.empty:
        none: pd.DataFrame = frame.set_index(list(KEYS))
        return none
    frame = frame.assign(shard=_shards(report, frame))
    frame["shard"] = frame["shard"].where(frame["shard"] != "", _by_sketch(frame))
    values = frame.groupby([*KEYS, "shard"], sort=False)[_COLUMNS]
    apart = (values.max() - values.min()).to_numpy(dtype=np.float64)
    once = frame.drop_duplicates([*KEYS, "shard"]).copy()
    # Both keep the order in which the shards first come.
    once["apart_sq"] = (apart**2).mean(axis=1)
    once["place"] = once["shard"].str.replace(r"~\d+", "", regex=True)
    pieces = once.drop_duplicates([*KEYS, "place"]).groupby(list(KEYS))["numel"].sum()
    groups = once.groupby(list(KEYS))
    result: pd.DataFrame = groups[_COLUMNS].sum()
    result["norm"] = _norms(result, once)
    result["covered"] = pieces.astype("int64")
    result["finite"] = frame.groupby(list(KEYS))["finite"].all()
    result["dtype"] = groups["dtype"].first()
    result["dims"] = groups["shape"].first().str.count(",") + 1
    # Plain tensors without known placements are copies, not shards.
    most = groups["numel"].max().where(groups["placements"].count() == 0, result["covered"]).astype("int64")
    numels = result.index.get_level_values("name").map(_numels(report))
    result["numel"] = np.where(pd.isna(numels), most, numels).astype(np.int64)
    spread = np.sqrt(groups["apart_sq"].sum().to_numpy(dtype=np.float64))
    norm = result["norm"].to_numpy(dtype=np.float64)
    result["spread"] = np.divide(spread, norm, out=np.zeros_like(spread), where=norm > 0)
    result["disagree"] = False
    return _disagreeing(result, once)


def _norms(result: pd.DataFrame, once: pd.DataFrame) -> Numbers:
    """Return the norm of each whole: of its shards' squares, or estimated from the sketch."""
    estimate = np.sqrt((result[_COLUMNS].to_numpy(dtype=np.float64) ** 2).mean(axis=1))
    # The square of a sum is not the sum of its parts' squares.
    squares = once["square"].astype("float64").mask(once["shard"].str.contains("~", regex=False))
    groups = squares.groupby([once[key] for key in KEYS])
    exact = groups.sum().where(groups.count() == groups.size()).reindex(result.index)
    norms: Numbers = np.where(exact.isna(), estimate, np.sqrt(exact.to_numpy(dtype=np.float64)))
    return norms


def _disagreeing(result: pd.DataFrame, once: pd.DataFrame) -> pd.DataFrame:
    """Correct the rows of parameters whose plain copies differ: they hold more elements than the whole.

    The whole is then the lowest rank's tensor, and `spread` says how far the others are from it.
    """
    plain = once["placements"].isna()
    over = result.index[result["covered"] > result["numel"]]
    if not len(over) or not plain.any():
        return result
    rows = once[plain].set_index(list(KEYS))
    for key in over.intersection(rows.index.unique()):
        here = rows.loc[[key]]
        sketches = here[_COLUMNS].to_numpy(dtype=np.float64)
        first = sketches[0]
        square = here["square"].iloc[0]
        norm = float(np.sqrt((first**2).mean() if pd.isna(square) else square))
        off = float(np.sqrt(((sketches - first) ** 2).mean(axis=1)).max())
        result.loc[key, _COLUMNS] = first
        result.loc[key, ["norm", "spread"]] = norm, off / norm if norm else float(off > 0)
        result.loc[key, "covered"] = int(here["numel"].iloc[0])
        result.loc[key, "disagree"] = True
    return result


def _shards(report: Report, frame: pd.DataFrame) -> pd.Series[str]:
    """Return the part of the whole that each row is, as `0,~1`; empty if the placements do not say.

    One number per mesh dimension that shards; `~` marks a dimension that holds parts of a sum, which cover
    the same elements.
    """
    parts = frame[["rank", "placements", "mesh_dims"]].drop_duplicates()
    names = [
        _shard(report, int(row["rank"]), row["placements"], row["mesh_dims"])
        for row in parts.to_dict("records")
    ]
    keyed = frame.merge(parts.assign(told=names), on=["rank", "placements", "mesh_dims"], how="left")
    shards: pd.Series[str] = pd.Series(keyed["told"].to_numpy(dtype=object), index=frame.index)
    return shards


def _shard(report: Report, rank: int, placements: object, mesh_dims: object) -> str:
    if not isinstance(placements, str) or "avg" in placements:
        return ""
    placement_kinds = kinds(placements)
    if placement_kinds and set(placement_kinds) == {"replicate"}:
        return "whole"
    dims = [name.strip() for name in mesh_dims.split(",")] if isinstance(mesh_dims, str) else []
    if len(dims) != len(placement_kinds):
        return ""
    places = []
    for kind, dim in zip(placement_kinds, dims, strict=True):
        if kind == "replicate":
            continue
        groups = {group.ranks for group in report.groups if group.mesh_dim == dim and rank in group.ranks}
        places_held = {ranks.index(rank) for ranks in groups}
        if len(places_held) != 1:
            return ""
        places.append(f"{'~' if kind == 'partial' else ''}{places_held.pop()}")
    return ",".join(places)


def _by_sketch(frame: pd.DataFrame) -> pd.Series[str]:
    """Return a name for the sketch of each row, equal for sketches of a parameter as close as `_SAME`."""
    sketches = frame[_COLUMNS].to_numpy(dtype=np.float64)
    groups = frame.groupby(list(KEYS), sort=False)
    number = groups.ngroup().to_numpy()
    _, firsts = np.unique(number, return_index=True)
    close = _close(sketches[firsts[number]], sketches)
    names = np.full(len(frame), "s0", dtype=object)
    # Most parameters have one sketch on all ranks: only the others are gone through row by row.
    kept: dict[int, list[int]] = {}
    for row in np.flatnonzero(np.isin(number, number[~close])):
        firsts_kept = kept.setdefault(int(number[row]), [])
        alike = _close(sketches[firsts_kept], sketches[row]) if firsts_kept else np.zeros(0, dtype=bool)
        if not alike.any():
            firsts_kept.append(int(row))
        names[row] = f"s{firsts_kept[int(alike.argmax())] if alike.any() else int(row)}"
    named: pd.Series[str] = pd.Series(names, index=frame.index)
    return named


def _close(sketch: Numbers, other: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each sketch whether both describe the same values; two unknown ones count as the same."""
    off = np.nan_to_num(np.abs(sketch - other)).max(axis=-1)
    size = np.nan_to_num(np.maximum(np.abs(sketch), np.abs(other))).max(axis=-1)
    alike: npt.NDArray[np.bool_] = (off <= _SAME * size) & (np.isnan(sketch) == np.isnan(other)).all(axis=-1)
    return alike


def _numels(report: Report) -> dict[str, int]:
    """Return the elements of each whole parameter, as far as the parameters' table tells."""
    frame = report.parameters[["name", "shape"]].drop_duplicates("name")
    sizes = {}
    for name, shape in zip(frame["name"], frame["shape"], strict=True):
        try:
            sides = json.loads(shape)
        except ValueError:
            continue
        if isinstance(sides, list) and all(isinstance(side, int) and side >= 0 for side in sides):
            sizes[str(name)] = int(np.prod(sides, dtype=object)) if sides else 1
    return sizes
