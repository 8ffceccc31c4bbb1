"""Gradients of plain tensors that ranks cut by hand: parts of one parameter, or parameters of one name.

Nothing on record says how such parts make up a whole, so two runs are compared rank by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.findings.replicas.replicas import replicas
from shardtoll.analyzers.roofline import Fabric
from shardtoll.ledger import SKETCH_COLUMNS, Ledger, Report

_COLUMNS: Final = list(SKETCH_COLUMNS)
_KEYS: Final = ["step", "name"]
_BARE: Final = Fabric("none", "none", "none")


def parts(both: pd.DataFrame, reports: Sequence[Report]) -> pd.Series[bool]:
    """Say of each row of `both`, the wholes of two runs, whether its ranks hold parts rather than copies.

    They hold parts if the ranks disagree in both runs and neither run shows that they hold one parameter. A
    wrapper, reductions that name it, or equal values at the start would show that.
    """
    are_parts: pd.Series[bool] = both["disagree_before"].astype(bool) & both["disagree_after"].astype(bool)
    if are_parts.any():
        shared: set[str] = set()
        for report in reports:
            context = make_context(Ledger(report.run, report.groups, report.tables), _BARE)
            shared |= {replica.name for replica in replicas(context)}
        are_parts &= ~both.index.get_level_values("name").isin(shared)
    return are_parts


def by_rank(
    both: pd.DataFrame, rows: pd.Series[bool], frames: Sequence[pd.DataFrame]
) -> tuple[pd.DataFrame, pd.Series[bool]]:
    """Return `both` with the chosen rows measured rank by rank, and which rows cannot be.

    `frames`: the gradients of each run. A row cannot be compared if other ranks hold it in the other run, or
    in another shape.
    """
    unlike = pd.Series(data=False, index=both.index)
    if not rows.any():
        return both, unlike
    wanted = both.index[rows]
    chosen = [frame[pd.MultiIndex.from_frame(frame[_KEYS]).isin(wanted)] for frame in frames]
    pairs = chosen[0].merge(
        chosen[1], on=[*_KEYS, "rank"], how="outer", suffixes=("_before", "_after"), indicator=True
    )
    sketch = pairs[[f"{name}_before" for name in _COLUMNS]].to_numpy(dtype=np.float64, na_value=np.nan)
    other = pairs[[f"{name}_after" for name in _COLUMNS]].to_numpy(dtype=np.float64, na_value=np.nan)
    shapes = (pairs["shape_before"] == pairs["shape_after"]).fillna(False).to_numpy(dtype=bool)
    sums = pd.DataFrame(
        {
            "apart": ((other - sketch) ** 2).mean(axis=1),
            "before": (sketch**2).mean(axis=1),
            "after": (other**2).mean(axis=1),
            "cross": (sketch * other).mean(axis=1),
            "unlike": ~shapes | (pairs["_merge"] != "both").to_numpy(dtype=bool),
        },
        index=pd.MultiIndex.from_frame(pairs[_KEYS]),
    )
    of_ranks = sums.groupby(level=[0, 1]).sum().reindex(wanted)
    apart, square, after, cross = (
        of_ranks[name].to_numpy(dtype=np.float64) for name in ("apart", "before", "after", "cross")
    )
    norm = np.sqrt(square)
    factor = np.divide(cross, square, out=np.zeros_like(square), where=square > 0)
    left = np.sqrt(np.maximum(0, after - factor * cross))
    held = both[rows]
    limit = held["tolerance"].to_numpy(dtype=np.float64) * norm + held["noise"].to_numpy(dtype=np.float64)
    finite = held["finite"].to_numpy(dtype=bool)
    off = np.sqrt(apart)
    measured = both.copy()
    measured.loc[rows, "relative"] = np.divide(off, norm, out=np.where(off > 0, np.inf, 0.0), where=norm > 0)
    measured.loc[rows, "fits"] = finite & (off <= limit)
    measured.loc[rows, "factor"] = np.where(finite & (left <= np.abs(factor) * limit), factor, np.nan)
    # The ranks are no copies of each other: what lies between them is no mistake.
    measured.loc[rows, "spread"] = 0.0
    measured.loc[rows, ["spread_before", "spread_after"]] = 0.0
    unlike[rows] = of_ranks["unlike"].to_numpy() > 0
    return measured, unlike
