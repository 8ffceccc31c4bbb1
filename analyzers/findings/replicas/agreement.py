"""Whether replicas agree, and how those that do not are split: in classes, by a factor, by what is absent.

Tolerance. Replicas compute one thing, so equal kernels give equal bits. If they do not (atomic sums, other
algorithms on other ranks), each rounds for itself. R roundings in series walk at random to eps x sqrt(R/12)
of the value, in the root mean square. So sqrt(eps) is reached at R = 12/eps: 1e8 roundings in float32 and
1,536 in bfloat16. There a gradient passes some tens a layer, and a reduction over n ranks adds n - 1 at most
in series. A reduction that is missing over n ranks puts them apart by about sqrt(2). In bfloat16, at a
tolerance of 0.09, this is 16 times as much. A gradient that is zero in exact arithmetic is noise in any
other. So
values below eps times the root mean square of the model's gradients, per element, count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.replicas import Replicas
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import SAMPLE
from shardtoll.ledger import SKETCH_COLUMNS
from shardtoll.ledger.records.work import OPTIMIZER_STEP

EPS: Final = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of a dtype at one."""

IN_SHAPES: Final = {"bf16[": "bfloat16", "f16[": "float16"}
"""How operators' shapes name the narrow dtypes that they compute in."""

MOST_LOOKS: Final = 16
"""Steps of one tensor that are looked at closely."""

WHOLE: Final = ("size_class", *SKETCH_COLUMNS)
"""Columns that separate two large tensors, in addition to the fingerprint: see `whole_contents`."""

Case = Literal["parts", "absent", "zero", "not-finite", "scale", "classes"]


class Split(Struct, frozen=True):
    """How the ranks of one tensor differ at one step."""

    case: Case
    """`parts`: no two ranks agree. `classes`: some do. `scale`: multiples of each other. Else what some
    ranks hold: nothing, zeros, NaN or infinity."""
    odd: tuple[int, ...]
    """If absent, zero or not finite: those ranks. Else all that do not agree with the most."""
    classes: tuple[tuple[int, ...], ...]
    relative: float | None
    """Distance of the two ranks farthest apart over the ranks' root mean square size; None unknown."""
    tolerance: float
    factor: float | None = None
    sizes: tuple[tuple[int, float | None], ...] = ()
    """Each rank's norm of what it holds."""


@once
def computed_eps(context: Context) -> float:
    """Return the spacing of the narrowest dtype that operators computed in; 0 if none is on record."""
    shapes = context.computes["shapes"].drop_duplicates().astype(str)
    spacings = [EPS[name] for mark, name in IN_SHAPES.items() if shapes.str.contains(mark, regex=False).any()]
    return max(spacings, default=0.0)


@once
def gradient_rms(context: Context) -> float:
    """Return the root mean square of all gradients' elements on record; 0 where there are none."""
    gradients = rows_of(context, "gradient")
    gradients = gradients[gradients["square"].notna().to_numpy(dtype=bool)]
    count = int(gradients["numel"].sum()) if len(gradients) else 0
    return math.sqrt(float(gradients["square"].sum()) / count) if count else 0.0


def suspects(rows: pd.DataFrame, sets: Sequence[Replicas]) -> pd.DataFrame:
    """Return the rows of those sets and steps in which some ranks hold other bits, with `set`.

    A rank without a row counts as different.
    """
    if rows.empty or not sets:
        none: pd.DataFrame = rows.iloc[:0].assign(set=pd.Series(dtype=np.int64))
        return none
    member = pd.DataFrame(
        [(copies.name, rank, number) for number, copies in enumerate(sets) for rank in copies.ranks],
        columns=["name", "rank", "set"],
    )
    rows = rows.assign(name=rows["name"].astype(object), rank=rows["rank"].astype(np.int64))
    joined: pd.DataFrame = rows.merge(member, on=["name", "rank"])
    if joined.empty:
        return joined
    size = np.array([len(copies.ranks) for copies in sets])
    # A value without a fingerprint (a fake tensor's) proves nothing, not even a difference.
    grouped = joined.groupby(["set", "step"], sort=False)
    prints, squares = grouped["hash"].transform("nunique"), grouped["square"].transform("nunique")
    all_hashed = grouped["hash"].transform("count") == grouped["hash"].transform("size")
    finite = grouped["square"].transform("count")
    here = grouped["rank"].transform("nunique").to_numpy(dtype=np.int64)
    fewer = here < size[joined["set"].to_numpy(dtype=np.int64)]
    odd = finite.to_numpy(dtype=np.int64) != here
    differ = (prints > 1).to_numpy(dtype=bool) | (squares > 1).to_numpy(dtype=bool) | fewer | odd
    unequal: pd.DataFrame = joined[differ & all_hashed.to_numpy(dtype=bool)]
    return unequal


def split(
    rows: pd.DataFrame, ranks: Sequence[int], *, eps: float, noise: float, absent_counts: bool = True
) -> Split | None:
    """Return how the ranks differ in one step; None if they agree within the tolerance.

    `noise`: what an element may be off by whatever its size.
    """
    rows = rows.drop_duplicates("rank").sort_values("rank")
    have = [int(rank) for rank in rows["rank"]]
    tolerance = math.sqrt(eps)
    squares = rows["square"].to_numpy(dtype=np.float64, na_value=np.nan)
    sizes = tuple(
        (rank, None if math.isnan(square) else math.sqrt(square))
        for rank, square in zip(have, squares, strict=True)
    )
    gone = tuple(sorted(set(ranks) - set(have)))
    if gone:
        return Split("absent", gone, (), None, tolerance, sizes=sizes) if absent_counts and have else None
    broken = np.isnan(squares)
    if broken.all():
        return None
    if broken.any():
        return Split("not-finite", _those(have, broken), (), None, tolerance, sizes=sizes)
    if "," not in str(rows["shape"].iloc[0]) and rows["shape"].nunique() > 1:
        return None
    sketches = rows[list(SKETCH_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isnan(sketches).any():
        return None
    magnitude = math.sqrt(float(squares.mean()))
    limit = tolerance * magnitude + noise * math.sqrt(float(rows["numel"].iloc[0]))
    apart = _distances(sketches)
    if magnitude == 0 or float(apart.max()) <= limit:
        return None
    relative = float(apart.max()) / magnitude
    zero = squares == 0
    if zero.any():
        return Split("zero", _those(have, zero), (), relative, tolerance, sizes=sizes)
    classes = _classes(have, apart, limit)
    most = max(classes, key=len)
    odd = tuple(rank for rank in have if len(most) == 1 or rank not in most)
    # A tensor of one number is a multiple of every other.
    factor = _factor(sketches, squares, limit) if int(rows["numel"].iloc[0]) > 1 else None
    if factor is not None:
        return Split("scale", odd, classes, relative, tolerance, factor, sizes)
    case: Case = "parts" if len(most) == 1 else "classes"
    return Split(case, odd, classes, relative, tolerance, sizes=sizes)


def _those(ranks: Sequence[int], mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(rank for rank, marked in zip(ranks, mask, strict=True) if marked)


def _distances(sketches: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the estimated distances of all pairs; of many ranks, those to the first alone."""
    others = sketches if len(sketches) <= 64 else sketches[:1]
    distances: npt.NDArray[np.float64] = np.sqrt(
        np.mean((sketches[:, None, :] - others[None, :, :]) ** 2, axis=2)
    )
    return distances


def _classes(
    ranks: Sequence[int], apart: npt.NDArray[np.float64], limit: float
) -> tuple[tuple[int, ...], ...]:
    """Return the ranks in classes that agree; among many ranks, by their distance to the first."""
    classes: list[list[int]] = []
    for index in range(len(ranks)):
        for members in classes:
            near = (
                apart[index, members[0]]
                if apart.shape[1] > 1
                else abs(apart[index, 0] - apart[members[0], 0])
            )
            if near <= limit:
                members.append(index)
                break
        else:
            classes.append([index])
    return tuple(tuple(ranks[index] for index in members) for members in classes)


def _factor(
    sketches: npt.NDArray[np.float64], squares: npt.NDArray[np.float64], limit: float
) -> float | None:
    """Return the largest factor between two ranks, if all are multiples of one; None otherwise."""
    if len(sketches) < 2:
        return None
    least = int(np.argmin(squares))
    base = sketches[least]
    size = float(base @ base)
    if size == 0:
        return None
    factors = sketches @ base / size
    off = np.sqrt(np.mean((sketches - factors[:, None] * base) ** 2, axis=1))
    if not bool((off <= limit).all()) or not bool((factors > 0).all()):
        return None
    largest = float(factors.max())
    return largest if largest > 1 + limit / math.sqrt(float(squares[least])) else None


def looks(rows: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return the rows of each step in order; of many steps the first and the last `MOST_LOOKS` / 2."""
    steps = sorted(int(step) for step in rows["step"].unique())
    if len(steps) > MOST_LOOKS:
        steps = [*steps[: MOST_LOOKS // 2], *steps[-MOST_LOOKS // 2 :]]
    return [(step, rows[(rows["step"] == step).to_numpy(dtype=bool)]) for step in steps]


def whole_contents(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with `WHOLE`: what of all elements tells large tensors apart, rounded to be compared.

    The square to four digits or so, the sketch to a thousandth of the tensor's size. A tensor that its
    fingerprint identifies, or without a square, has none.
    """
    square = rows["square"].to_numpy(dtype=np.float64, na_value=np.nan)
    sampled = (rows["numel"] > SAMPLE).to_numpy(dtype=bool) & (square > 0)
    square = np.where(sampled, square, np.nan)
    sketches = rows[list(SKETCH_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    rounded = np.round(sketches / np.sqrt(square)[:, None], 3) + 0.0
    columns = dict(zip(SKETCH_COLUMNS, rounded.T, strict=True))
    with_contents: pd.DataFrame = rows.assign(size_class=np.round(np.log(square), 4) + 0.0, **columns)
    return with_contents


def rows_of(context: Context, kind: str) -> pd.DataFrame:
    """Return the values of a kind that were taken in a step.

    Gradients are those that an optimizer used: others, as of a micro-batch that is still to be added to, need
    not be whole. If no optimizer stepped in the whole run, those at the ends of steps.
    """
    values: Any = context.values
    rows: pd.DataFrame = values[
        (values["kind"] == kind).to_numpy(dtype=bool) & values["step"].notna().to_numpy(dtype=bool)
    ]
    if kind == "gradient":
        used = (rows["nth"] == 0).to_numpy(dtype=bool)
        if used.any() or optimizes(context):
            rows = rows[used]
    return rows


@once
def optimizes(context: Context) -> bool:
    """Whether an optimizer stepped in the run, in a step that was looked at or another."""
    stepped = context.collectives["optimizer_steps"].max()
    return (
        (not pd.isna(stepped) and int(stepped) > 0)
        or bool((context.computes["op"] == OPTIMIZER_STEP).any())
        or bool(context.parameters["has_grad"].notna().any())
    )
