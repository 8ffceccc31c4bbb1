"""The operators that take longest, each against the accelerator's peaks."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.bounds.op_light import Lights
from shardtoll.analyzers.bounds.operator_rows import FIGURES, OperatorRows, sums
from shardtoll.analyzers.shared.tally import text
from shardtoll.ledger.answers.step_roofline import Bound, OpRoofline

MOST: Final = 60
"""Kinds of operators in a report."""


def top_operators(rows: OperatorRows, bounds: Lights | None) -> tuple[OpRoofline, ...]:
    """Return the kinds of operators, those with most time first, else most least time, else most FLOPs."""
    if rows.frame.empty:
        return ()
    kinds, code = rows.kinds, rows.kind
    columns = {name: rows.figure(name) for name in FIGURES}
    if bounds is not None:
        columns |= {name: getattr(bounds, name) for name in ("light_ns", "flops_ns", "bytes_ns")}
    whole = pd.DataFrame({name: sums(code, column, len(kinds)) for name, column in columns.items()})
    mean_of = rows.frame[["step", "rank"]].drop_duplicates().shape[0]
    peak = (None,) * len(kinds) if bounds is None else bounds.peak
    order = whole.fillna(0.0).sort_values(
        [name for name in ("device_ns", "light_ns", "flops") if name in whole], ascending=False
    )
    return tuple(
        _line(kinds.iloc[label], whole.loc[label], peak[label], mean_of) for label in order.index[:MOST]
    )


def _line(first: pd.Series[str], sums: pd.Series[float], peak: str | None, mean_of: int) -> OpRoofline:
    calls = sums["count"]
    flops, moved, took = (_known(sums[name]) for name in ("flops", "moved_bytes", "device_ns"))
    light = _known(sums.get("light_ns", np.nan))
    return OpRoofline(
        op=text(first["op"]) or "kernels of no known operator",
        dtype=peak,
        shapes=text(first["shapes"]),
        count=round(float(calls) / mean_of, 3),
        flops=_each(flops, calls),
        moved_bytes=_each(moved, calls),
        intensity=None if flops is None or not moved else flops / moved,
        device_ns=_each(took, calls),
        # FLOP a ns is 1e9 a second.
        tflops=None if flops is None or not took else flops / took / 1e3,
        light_ns=_each(light, calls),
        bound=_bound(_known(sums.get("flops_ns", np.nan)), _known(sums.get("bytes_ns", np.nan))),
    )


def _bound(flops_ns: float | None, bytes_ns: float | None) -> Bound | None:
    """Return which peak limits it: memory if it has no FLOPs; None if bytes are unknown."""
    if bytes_ns is None:
        return None
    return "compute" if flops_ns is not None and flops_ns >= bytes_ns else "memory"


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _each(whole: float | None, calls: float) -> int | None:
    return None if whole is None or not calls else round(whole / calls)
