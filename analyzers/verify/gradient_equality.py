"""Whether two runs made the same gradients, however each of them is sharded.

Tolerance. Two right programs add the same numbers in another order. The effect on a gradient follows from the
spacing eps of the coarsest dtype that it went through. The tolerance is sqrt(eps), relative to the gradient's
norm: 3.5e-4 for float32, 8.8e-2 for bfloat16 (why: see the gradient check). A gradient that is zero but for
rounding is held to eps times the root mean square of all gradients. Each optimizer step builds on the
rounding of the one before: the tolerance grows by `GROWTH` a step, up to `MOST`.

Real mistakes are far outside. A reduction missing over n ranks is off by (n - 1)/n or by about sqrt(1 - 1/n),
a doubled one by 1. The distance is estimated from the eight numbers of a sketch, and may be off by a factor
of three. This is little next to the three orders of magnitude between rounding in float32 and a mistake. It
is less than the one order in bfloat16.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.analyzers.findings.replicas.agreement import EPS, IN_SHAPES
from shardtoll.analyzers.shared.whole_gradients import gradients, wholes
from shardtoll.analyzers.verify.part_gradients import by_rank, parts
from shardtoll.ledger import SKETCH_COLUMNS, Finding, Report
from shardtoll.ledger.answers.verification import Difference, Gradients

GROWTH: Final = 4.0
MOST: Final = 0.1
EXPECT_CHANGE: Final = ("wrong-gradient", "replica-drift", "unsynced-parameter", "duplicated-data")
"""Kinds that say that gradients are not what they should be: a fix changes them."""
SHOWN: Final = 20
HOW: Final = 'audit(model, checks=("gradients",))'
_COLUMNS: Final = list(SKETCH_COLUMNS)


def compare(before: Report, after: Report, judged: tuple[Finding, ...]) -> Gradients:
    """Return whether the gradients are equal, step by step, in every step that both runs looked at.

    `judged`: the findings to be gone; if one of them says that gradients are wrong, they are expected to
    change.
    """
    expected = any(finding.kind in EXPECT_CHANGE for finding in judged)
    rows = [gradients(report) for report in (before, after)]
    lacking = [name for name, frame in zip(("before", "after"), rows, strict=True) if frame.empty]
    if lacking:
        runs = "neither run has" if len(lacking) == 2 else f"the run {lacking[0]} does not have"
        return Gradients(
            "unknown", f"{runs} its gradients on record: run it with {HOW}", change_expected=expected
        )
    whole = [wholes(report, frame) for report, frame in zip((before, after), rows, strict=True)]
    both = whole[0].join(whole[1], how="inner", lsuffix="_before", rsuffix="_after")
    if both.empty:
        why = "no parameter is on record in the same step of both runs: give both the same check_every"
        return Gradients("unknown", why, change_expected=expected)
    both = _measured(both, _eps(before, after))
    both = both.assign(parts=parts(both, (before, after)))
    both, unlike = by_rank(both, both["parts"], rows)
    usable = both["covered_before"].eq(both["numel_before"]) & both["covered_after"].eq(both["numel_after"])
    # A flat shard is sketched by its place in the flat parameter, which compares with its like only.
    flat = usable & both["dims_before"].ne(both["dims_after"])
    usable &= both["numel_before"].eq(both["numel_after"]) & ~flat & ~unlike
    wrong = both[usable & ~both["fits"]]
    wrong = wrong[~_ranks_agree(wrong, rows[0], rows[1])]
    names = both.index.get_level_values("name")
    count, steps = names[usable].nunique(), both.index.get_level_values("step")[usable].nunique()
    unusable = sorted(set(names[~usable]) - set(names[usable]))
    only = sorted(set(whole[0].index.get_level_values("name")) ^ set(whole[1].index.get_level_values("name")))
    gaps = _gaps(unusable, only, sorted(set(names[flat])), sorted(set(names[unlike])))
    cut = names[usable & both["parts"]].nunique()
    if cut:
        gaps = f"; {cut:,} that ranks hold parts of their own of were compared rank by rank{gaps}"
    if not wrong.empty:
        differences = _differences(wrong)
        differing = wrong.index.get_level_values("name").nunique()
        why = f"{differing:,} of {count:,} parameters differ, most {_words(differences[0])}"
        why += ("" if expected else _inputs(before, after)) + gaps
        return Gradients("differ", why, count, steps, differences, expected)
    if not count:
        return Gradients(
            "unknown", f"no whole gradient is on record in both runs{gaps}", change_expected=expected
        )
    worst = both.loc[usable, "relative"].max()
    why = (
        f"{count:,} parameters in {steps:,} steps, apart by {worst:.2g} of their norm at most, tolerance "
        f"{both.loc[usable, 'tolerance'].min():.2g} in the first step{gaps}"
    )
    return Gradients("unknown" if unusable else "equal", why, count, steps, (), expected)


def _measured(both: pd.DataFrame, floor: float) -> pd.DataFrame:
    """Add how far each pair is apart, what it is held to, and whether it fits.

    `floor`: spacing of the coarsest dtype that either run computed or reduced in.
    """
    sketch = both[[f"{name}_before" for name in _COLUMNS]].to_numpy(dtype=np.float64)
    other = both[[f"{name}_after" for name in _COLUMNS]].to_numpy(dtype=np.float64)
    norm = both["norm_before"].to_numpy(dtype=np.float64)
    numel = both["numel_before"].to_numpy(dtype=np.float64)
    eps = np.full(len(both), floor)
    for side in ("dtype_before", "dtype_after"):
        eps = np.maximum(eps, both[side].map(EPS).fillna(0.0).to_numpy(dtype=np.float64))
    steps = both.index.get_level_values("step")
    nth = pd.Series(steps).rank(method="dense").to_numpy(dtype=np.float64) - 1
    tolerance = np.maximum(np.sqrt(eps), np.minimum(MOST, np.sqrt(eps) * GROWTH ** np.minimum(nth, 50)))
    total = pd.Series(norm**2).groupby(np.asarray(steps)).transform("sum").to_numpy(dtype=np.float64)
    every = pd.Series(numel).groupby(np.asarray(steps)).transform("sum").to_numpy(dtype=np.float64)
    noise = eps * np.sqrt(total / np.maximum(every, 1))
    apart = np.sqrt(((other - sketch) ** 2).mean(axis=1))
    spread = both[["spread_before", "spread_after"]].max(axis=1).to_numpy(dtype=np.float64)
    square = (sketch**2).sum(axis=1)
    factor = np.divide((sketch * other).sum(axis=1), square, out=np.zeros_like(square), where=square > 0)
    left = np.sqrt(((other - factor[:, None] * sketch) ** 2).mean(axis=1))
    finite = (both["finite_before"] & both["finite_after"]).to_numpy(dtype=bool)
    limit = tolerance * norm + noise * np.sqrt(numel)
    fits = finite & (apart <= limit) & (spread * norm <= limit)
    measured: pd.DataFrame = both.assign(
        relative=np.divide(apart, norm, out=np.where(apart > 0, np.inf, 0.0), where=norm > 0),
        tolerance=tolerance,
        noise=noise * np.sqrt(numel),
        spread=spread,
        fits=fits,
        finite=finite,
        factor=np.where(finite & (left <= np.abs(factor) * limit), factor, np.nan),
    )
    return measured


def _ranks_agree(wrong: pd.DataFrame, before: pd.DataFrame, after: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Say of each row whether every rank holds the same values in both runs, though replicas differ.

    Apparent replicas may be parts of different parameters of one name, as the experts of a rank.
    """
    if wrong.empty:
        return np.zeros(0, dtype=bool)
    keys = ["step", "name", "rank"]
    chosen = [frame[frame["name"].isin(wrong.index.get_level_values("name"))] for frame in (before, after)]
    pairs = chosen[0].merge(chosen[1], on=keys, how="outer", suffixes=("_before", "_after"), indicator=True)
    sketch = pairs[[f"{name}_before" for name in _COLUMNS]].to_numpy(dtype=np.float64, na_value=np.nan)
    other = pairs[[f"{name}_after" for name in _COLUMNS]].to_numpy(dtype=np.float64, na_value=np.nan)
    held = pd.MultiIndex.from_frame(pairs[["step", "name"]])
    tolerance = wrong["tolerance"].reindex(held).to_numpy(dtype=np.float64)
    apart, norm = np.sqrt(((other - sketch) ** 2).mean(axis=1)), np.sqrt((sketch**2).mean(axis=1))
    alike = (pairs["_merge"] == "both").to_numpy() & (pairs["shape_before"] == pairs["shape_after"]).fillna(
        False
    ).to_numpy(dtype=bool)
    alike &= np.nan_to_num(apart, nan=np.inf) <= np.nan_to_num(tolerance * norm, nan=-1.0)
    every = pd.Series(alike, index=held).groupby(level=[0, 1]).all()
    agree: npt.NDArray[np.bool_] = every.reindex(wrong.index).fillna(False).to_numpy(dtype=bool)
    return agree


def _differences(wrong: pd.DataFrame) -> tuple[Difference, ...]:
    """Return the first step in which each parameter differs, the worst parameters first."""
    first = wrong.sort_index(level="step").reset_index().drop_duplicates("name")
    first = first.sort_values(["finite", "relative"], ascending=[True, False], kind="stable").head(SHOWN)
    return tuple(
        Difference(
            parameter=str(row["name"]),
            step=int(row["step"]),
            relative=float(row["relative"]) if math.isfinite(row["relative"]) else None,
            tolerance=float(row["tolerance"]),
            factor=float(row["factor"])
            if math.isfinite(row["factor"]) and row["spread"] <= row["tolerance"]
            else None,
            note=_note(row),
        )
        for row in first.to_dict("records")
    )


def _note(row: dict[str, object]) -> str | None:
    if not row["finite"]:
        return "not finite in one of the runs"
    for side in ("before", "after"):
        spread = float(row[f"spread_{side}"])  # type: ignore[arg-type]
        if spread > float(row["tolerance"]):  # type: ignore[arg-type]
            return f"in the run {side} its replicas differ among themselves, by {spread:.2g} of its norm"
    return None


def _words(worst: Difference) -> str:
    if worst.note and worst.relative is None:
        return f"{worst.parameter} in step {worst.step} ({worst.note})"
    off = (
        "from zero"
        if worst.relative is None
        else f"by {worst.relative:.2g} of its norm (tolerance {worst.tolerance:.2g})"
    )
    factor = "" if worst.factor is None else f": after is {worst.factor:.4g} times before"
    note = "" if worst.note is None else f"; {worst.note}"
    return f"{worst.parameter} in step {worst.step} {off}{factor}{note}"


def _gaps(unusable: list[str], only: list[str], flat: list[str], unlike: list[str]) -> str:
    words = ""
    unusable = [name for name in unusable if name not in flat and name not in unlike]
    if unlike:
        words += (
            f"; of {len(unlike):,} (as {unlike[0]}) each rank holds a part of its own, and the runs divide "
            "them otherwise: nothing says how they make up the whole"
        )
    if flat:
        words += f"; {len(flat):,} (as {flat[0]}) are flat shards, as FSDP1's, in one run only"
    if unusable:
        words += f"; of {len(unusable):,} (as {unusable[0]}) not all shards are on record in both runs"
    if only:
        words += f"; {len(only):,} (as {only[0]}) have a gradient in one run only"
    return words


def _eps(before: Report, after: Report) -> float:
    """Return the spacing of the coarsest dtype that either run computed or reduced in, as far as recorded."""
    names: set[str] = set()
    for report in (before, after):
        rows = report.tables["collectives"]
        rows = rows.filter(pc.is_in(rows.column("phase"), pa.array(["forward", "backward", "recompute"])))
        names |= set(rows.column("dtype").unique().to_pylist())
        for shapes in report.tables["computes"].column("shapes").unique().to_pylist():
            names |= {dtype for mark, dtype in IN_SHAPES.items() if mark in shapes}
    return max((EPS[name] for name in names if name in EPS and name != "float64"), default=0.0)


def _inputs(before: Report, after: Report) -> str:
    """Return a warning if both runs recorded their batches and read other ones."""
    hashes = []
    for report in (before, after):
        rows = report.tables["values"]
        rows = rows.filter(pc.and_(pc.equal(rows.column("kind"), "input"), pc.is_valid(rows.column("hash"))))
        hashes.append(set(rows.column("hash").to_pylist()))
    if all(hashes) and not hashes[0] & hashes[1]:
        return "; the runs read other batches: give both the same seed and data"
    return ""
