"""Whether values that ranks hold equal after a message are the mean of what they held, or its sum.

A look follows the step in which values were added up, and the optimizer moves them in that step too. So after
an average they are near the mean of the look before. After a sum they are near that mean times the number of
ranks. The sketches of values show how far from each; see `ledger.records.value`. If values begin at zero, as
biases, both are near: many parameters together decide for them.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.value_sums import value_sums
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import SKETCH_COLUMNS

CLEAR: Final = 4.0
"""How many times nearer, in squares, the one has to be than the other."""

Verdict = Literal["mean", "sum"] | None
Far = dict[tuple[tuple[int, ...], int, str], tuple[float, float, float]]


def verdict(context: Context, over: tuple[int, ...], step: int, name: str) -> Verdict:
    """Return whether equal values after a step are a sum or a mean of these ranks'; None if unclear.

    If its own values are unclear, the other parameters that were equal after that step decide. A sum among
    means is unclear: so do values look that began at zero.
    """
    by_itself = _clear(*_far(context).get((over, step, name), (0.0, 0.0, 0.0)))
    together = _clear(*_together(context).get((over, step), (0.0, 0.0, 0.0)))
    return None if by_itself == "sum" and together == "mean" else by_itself or together


def _clear(mean: float, total: float, before: float) -> Verdict:
    if CLEAR * mean < total:
        return "mean"
    return "sum" if CLEAR * total < min(mean, before) else None


@once
def _far(context: Context) -> Far:
    """Return by ranks, step and name the squared distances from the mean, and from it if this is the sum.

    And the square of that mean.
    """
    everywhere = {value_sum.over for value_sum in value_sums(context)}
    values = context.values
    rows = keep(values, (values["kind"] == "parameter") & values["hash"].notna())
    if rows.empty or not everywhere:
        return {}
    rows = rows.assign(step=rows["step"].fillna(-1).astype("int64"))
    distances: Far = {}
    for name, of_name in rows.groupby("name", observed=True, sort=False):
        _add(distances, str(name), of_name.drop_duplicates(["step", "rank"]), everywhere)
    return distances


def _add(distances: Far, name: str, rows: pd.DataFrame, everywhere: set[tuple[int, ...]]) -> None:
    index = ["step", "rank"]
    hashes = rows.astype({"hash": "int64"}).set_index(index)["hash"].unstack()
    sketches = rows.set_index(index)[list(SKETCH_COLUMNS)].astype("float64").unstack()
    for over in everywhere:
        if not set(over) <= set(hashes.columns):
            continue
        mine = hashes[list(over)].dropna()
        held = np.stack(
            [sketches[column].loc[mine.index, list(over)].to_numpy() for column in SKETCH_COLUMNS], axis=-1
        )
        equal = (mine.nunique(axis=1) == 1).to_numpy(dtype=bool)
        for number in range(1, len(mine)):
            before, after = held[number - 1].mean(axis=0), held[number, 0]
            if equal[number] and np.isfinite(before).all() and np.isfinite(after).all():
                distances[over, int(mine.index[number]), name] = (
                    float(np.mean((after - before) ** 2)),
                    float(np.mean((after / len(over) - before) ** 2)),
                    float(np.mean(before**2)),
                )


@once
def _together(context: Context) -> dict[tuple[tuple[int, ...], int], tuple[float, float, float]]:
    distances: dict[tuple[tuple[int, ...], int], tuple[float, float, float]] = {}
    for (over, step, _), (mean, total, before) in _far(context).items():
        so_far = distances.get((over, step), (0.0, 0.0, 0.0))
        distances[over, step] = so_far[0] + mean, so_far[1] + total, so_far[2] + before
    return distances
