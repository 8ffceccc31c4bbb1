"""The least time of operators on an accelerator: FLOPs at its peak or bytes at its memory's rate.

The roofline model of Williams, Waterman and Patterson (2009): an operator of F FLOPs that moves B bytes takes
at least max(F / peak, B / bandwidth). Where the format of the peak is in doubt the fastest that its operands
allow is taken: float32 matmuls may run as TensorFloat-32, and attention may skip the half that a causal mask
hides. So the time stays a lower bound. Data that comes out of a cache can beat B / bandwidth: an operator
whose kernels were faster than that on average is held against its FLOPs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.operator_rows import Floats, OperatorRows, sums, uses_matrix_units
from shardtoll.analyzers.refuted import LIMIT
from shardtoll.analyzers.roofline import Gpu
from shardtoll.analyzers.tally import codes

_PEAKS_OF: Final = {
    "float32": ("float32", "tf32"),
    "bfloat16": ("bfloat16",),
    "float16": ("float16",),
    "float8": ("float8",),
}
"""Format of an operand -> the peaks it may run at."""

KIND: Final = ("op", "shapes")
"""What operators are alike by: all their calls do the same."""

MOST_REFUTED: Final = 5
"""Kinds of operators that are named; the others are counted."""

_MATRIX_UNITS: Final = ("tf32", "bfloat16", "float16", "float8")


@dataclass(frozen=True, slots=True)
class Lights:
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
    peak: npt.NDArray[Any]
    """Name of the peak, or None."""
    refuted: tuple[str, ...]


def lights(rows: OperatorRows, gpu: Gpu) -> Lights:
    """Return the least times of all rows on the accelerator."""
    frame = rows.frame
    peak, tflops = _peaks(frame, gpu)
    flops = frame["flops"].to_numpy(dtype=np.float64)
    took = frame["device_ns"].to_numpy(dtype=np.float64) if rows.of_trace else np.full(len(frame), np.nan)
    halved = np.where(frame["op"].str.contains("attention").to_numpy(dtype=bool, na_value=False), 0.5, 1.0)
    whole_ns = flops / (tflops * 1e3)
    flops_ns = whole_ns * halved
    bytes_ns = frame["moved_bytes"].to_numpy(dtype=np.float64) / gpu.memory_gbps.value
    code, first = codes(frame, KIND)
    measured = sums(code, took, len(first))
    cached = sums(code, bytes_ns, len(first)) > measured
    bytes_ns = np.where(cached[code], np.nan, bytes_ns)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = measured / sums(code, flops_ns, len(first))
    wrong = factors < LIMIT
    flops_ns = np.where(wrong[code], np.nan, flops_ns)
    light_ns = np.fmax(flops_ns, bytes_ns)
    share = _reached_share(gpu)
    slowed = np.where(np.isin(peak, _MATRIX_UNITS), flops_ns / share, flops_ns)
    return Lights(
        flops_ns=flops_ns,
        bytes_ns=bytes_ns,
        light_ns=_at_most(light_ns, took),
        floor_ns=_at_most(np.fmax(slowed, bytes_ns), took),
        whole_flops_ns=np.where(_of_model(frame), whole_ns, np.nan),
        peak=peak,
        refuted=_refuted(first, factors, wrong, gpu),
    )


def _refuted(first: pd.DataFrame, factors: Floats, wrong: npt.NDArray[np.bool_], gpu: Gpu) -> tuple[str, ...]:
    """Return a sentence for each kind of operator that was faster than the peak, the worst first."""
    places = np.flatnonzero(wrong)
    places = places[np.argsort(factors[places], kind="stable")]
    told = [
        f"{first.iloc[at]['op']} on {first.iloc[at]['shapes']} took {factors[at]:.2g} times what the peak of "
        f"{gpu.title} allows"
        for at in places[:MOST_REFUTED]
    ]
    if len(places) > MOST_REFUTED:
        told.append(f"and {len(places) - MOST_REFUTED} more kinds of operators were faster than the peak")
    return tuple(told)


def _of_model(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    places, ops = pd.factorize(frame["op"])
    told = np.array([*(uses_matrix_units(str(op)) for op in ops), False], dtype=np.bool_)
    return told[places]


def _at_most(bound_ns: Floats, took_ns: Floats) -> Floats:
    """Return bounds that no measured time lies below; unknown stays unknown."""
    return np.where(took_ns < bound_ns, took_ns, bound_ns)


def _reached_share(gpu: Gpu) -> float:
    """Return which share of the peak large bfloat16 matmuls reach; all of it where nobody measured."""
    reached, peak = gpu.reached_matmul_tflops, gpu.peak_tflops.get("bfloat16")
    return 1.0 if reached is None or peak is None else min(1.0, reached.value / peak.value)


def _peaks(frame: pd.DataFrame, gpu: Gpu) -> tuple[npt.NDArray[Any], Floats]:
    """Return the name and TFLOP/s of the fastest peak that each row's operands allow."""
    best = {given: _fastest(given, gpu) for given in frame["formats"].unique()}
    names = np.empty(len(frame), dtype=object)
    names[:] = [best[given] for given in frame["formats"]]
    rate = {name: gpu.peak_tflops[name].value for name in best.values() if name is not None}
    return names, np.array([rate.get(name, np.nan) for name in names], dtype=np.float64)


def _fastest(formats: tuple[str, ...], gpu: Gpu) -> str | None:
    allowed = [name for each in formats for name in _PEAKS_OF.get(each, ()) if name in gpu.peak_tflops]
    return max(allowed, key=lambda name: gpu.peak_tflops[name].value, default=None)
