"""The least time of operators on an accelerator: FLOPs at its peak or bytes at its memory's rate.

The roofline model of Williams, Waterman and Patterson (2009): an operator of F FLOPs that moves B bytes takes
at least max(F / peak, B / bandwidth). If the format of the peak is in doubt, the fastest that its operands
allow is taken. A matmul of float32 may run as TensorFloat-32. Attention may skip the half that a causal mask
hides. So the time stays a lower bound. Data that comes out of a cache can beat B / bandwidth. An operator
whose kernels were faster than that on average is held against its FLOPs alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.bounds.operator_rows import Floats, OperatorRows, sums, uses_matrix_units
from shardtoll.analyzers.context.refuted import LIMIT
from shardtoll.analyzers.roofline import Gpu

_PEAKS_OF: Final = {
    "float32": ("float32", "tf32"),
    "bfloat16": ("bfloat16",),
    "float16": ("float16",),
    "float8": ("float8",),
}
"""Format of an operand -> the peaks it may run at."""

MOST_REFUTED: Final = 5
"""Kinds of operators that are named; the others are counted."""

_MATRIX_UNITS: Final = ("tf32", "bfloat16", "float16", "float8")


class Lights(Struct, frozen=True):
    """Least times of the rows of `OperatorRows`, in ns; NaN unknown."""

    flops_ns: Floats
    """FLOPs at the peak, a causal half of attention left out."""
    bytes_ns: Floats
    light_ns: Floats
    """The larger one; never more than the device took."""
    floor_ns: Floats
    """The same at the rate that large matmuls reach; never more than the device took."""
    whole_flops_ns: Floats
    """FLOPs as counted, at the peak, of operators that a model is made of: what utilisation counts."""
    peak: tuple[str | None, ...]
    """Name of the peak of each kind, or None."""
    refuted: tuple[str, ...]


def lights(rows: OperatorRows, gpu: Gpu) -> Lights:
    """Return the least times of all rows on the accelerator."""
    kinds, code = rows.kinds, rows.kind
    peak, tflops = _peaks(kinds, gpu)
    took = rows.figure("device_ns") if rows.of_trace else np.full(len(code), np.nan)
    halved = np.array([0.5 if "attention" in (op or "") else 1.0 for op in kinds["op"]], dtype=np.float64)
    whole_ns = rows.figure("flops") / (tflops[code] * 1e3)
    flops_ns = whole_ns * halved[code]
    bytes_ns = rows.figure("moved_bytes") / gpu.memory_gbps.value
    measured = sums(code, took, len(kinds))
    cached = sums(code, bytes_ns, len(kinds)) > measured
    bytes_ns = np.where(cached[code], np.nan, bytes_ns)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = measured / sums(code, flops_ns, len(kinds))
    wrong = factors < LIMIT
    flops_ns = np.where(wrong[code], np.nan, flops_ns)
    light_ns = np.fmax(flops_ns, bytes_ns)
    share = _reached_share(gpu)
    on_matrix_units = np.array([name in _MATRIX_UNITS for name in peak], dtype=np.bool_)
    of_model = np.array([uses_matrix_units(op or "") for op in kinds["op"]], dtype=np.bool_)
    slowed = np.where(on_matrix_units[code], flops_ns / share, flops_ns)
    return Lights(
        flops_ns=flops_ns,
        bytes_ns=bytes_ns,
        light_ns=_at_most(light_ns, took),
        floor_ns=_at_most(np.fmax(slowed, bytes_ns), took),
        whole_flops_ns=np.where(of_model[code], whole_ns, np.nan),
        peak=peak,
        refuted=_refuted(kinds, factors, wrong, gpu),
    )


def _refuted(kinds: pd.DataFrame, factors: Floats, wrong: npt.NDArray[np.bool_], gpu: Gpu) -> tuple[str, ...]:
    """Return a sentence for each kind of operator that was faster than the peak, the worst first."""
    places = np.flatnonzero(wrong)
    places = places[np.argsort(factors[places], kind="stable")]
    refuted = [
        f"{kinds.iloc[row]['op']} on {kinds.iloc[row]['shapes']} took {factors[row]:.2g} times what the peak "
        f"of {gpu.title} allows"
        for row in places[:MOST_REFUTED]
    ]
    if len(places) > MOST_REFUTED:
        refuted.append(f"and {len(places) - MOST_REFUTED} more kinds of operators were faster than the peak")
    return tuple(refuted)


def _at_most(bound_ns: Floats, took_ns: Floats) -> Floats:
    """Return bounds that no measured time lies below; unknown stays unknown."""
    return np.where(took_ns < bound_ns, took_ns, bound_ns)


def _reached_share(gpu: Gpu) -> float:
    """Return which share of the peak large bfloat16 matmuls reach; all of it if nobody measured."""
    reached, peak = gpu.reached_matmul_tflops, gpu.peak_tflops.get("bfloat16")
    return 1.0 if reached is None or peak is None else min(1.0, reached.value / peak.value)


def _peaks(kinds: pd.DataFrame, gpu: Gpu) -> tuple[tuple[str | None, ...], Floats]:
    """Return the name and TFLOP/s of the fastest peak that the operands of each kind allow."""
    names = tuple(_fastest(given, gpu) for given in kinds["formats"])
    rates = [np.nan if name is None else gpu.peak_tflops[name].value for name in names]
    return names, np.array(rates, dtype=np.float64)


def _fastest(formats: tuple[str, ...], gpu: Gpu) -> str | None:
    allowed = [name for each in formats for name in _PEAKS_OF.get(each, ()) if name in gpu.peak_tflops]
    return max(allowed, key=lambda name: gpu.peak_tflops[name].value, default=None)
