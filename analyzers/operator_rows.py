"""What operators did, in one form for traces and live records: FLOPs, bytes, formats, times on the device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.tally import codes, keep
from shardtoll.ledger.work import OPTIMIZER_STEP, kind_of_work

Floats = npt.NDArray[np.float64]

FORMATS: Final = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
"""As shapes write a format -> as torch does; all that begin with `float8` are `float8`."""

_OPERAND: Final = re.compile(r"([a-z]+\d+[a-z0-9_]*)\[([\d,]*)\]")
FIGURES: Final = ("count", "flops", "moved_bytes", "device_ns")
_KEY: Final = ("step", "rank", "op", "phase", "shapes")


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """One row a step, rank, operator, phase and kind of inputs."""

    frame: pd.DataFrame
    """Columns step, rank, op, phase, shapes, count; flops, moved_bytes and device_ns of all calls, as floats
    with NaN for unknown; formats (a tuple of names, sorted) of its matrices."""
    of_trace: bool
    """Whether traces tell, so that all kernels of a step are here, with their times; else live capture, which
    records operators with FLOPs only."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps with rows."""
        return tuple(sorted(int(step) for step in self.frame["step"].unique()))


@once
def operator_rows(context: Context) -> OperatorRows:
    """Return what a trace tells where there is one, else what capture recorded in the surveyed steps."""
    traced = context.ledger.frame("device_ops")
    traced = keep(traced, traced["step"].isin(context.steps))
    if len(traced):
        return OperatorRows(_with_formats(_floats(traced)), of_trace=True)
    rows = context.computes_in_steps
    # A length on the host says nothing of a device's; on a CPU it is the operator's own.
    rows = rows.assign(count=1, device_ns=rows["duration_ns"])
    if rows.empty:
        return OperatorRows(_with_formats(_floats(rows)), of_trace=False)
    values = _floats(rows)
    code, first = codes(values, _KEY)
    for name in FIGURES:
        first[name] = sums(code, values[name].to_numpy(), len(first))
    return OperatorRows(_with_formats(first), of_trace=False)


def sums(code: npt.NDArray[np.int64], values: Floats, groups: int) -> Floats:
    """Return the sums by group; NaN where a value is unknown."""
    return np.bincount(code, weights=values, minlength=groups).astype(np.float64)


def _floats(rows: pd.DataFrame) -> pd.DataFrame:
    frame: pd.DataFrame = rows[list(_KEY)].copy()
    for name in FIGURES:
        frame[name] = rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
    return frame


def _with_formats(frame: pd.DataFrame) -> pd.DataFrame:
    # Each text once: a run has millions of operators and some dozens of shapes.
    places, different = pd.factorize(frame["shapes"])
    told = np.empty(len(different) + 1, dtype=object)
    for at, text in enumerate(different):
        told[at] = matrix_formats(str(text))
    told[-1] = ()
    frame["formats"] = told[places]
    return frame


def matrix_formats(shapes: str) -> tuple[str, ...]:
    """Return the floating-point formats of the operands with two dimensions and more, else of all."""
    found = [(name, dims.count(",") + bool(dims)) for name, dims in _OPERAND.findall(shapes)]
    named = [
        ("float8" if name.startswith("float8") else FORMATS[name], rank)
        for name, rank in found
        if name in FORMATS or name.startswith("float8")
    ]
    matrices = {name for name, rank in named if rank > 1}
    return tuple(sorted(matrices or {name for name, _ in named}))


def uses_matrix_units(op: str) -> bool:
    """Whether its FLOPs are those of a model: matmuls, attention, convolutions."""
    return op != OPTIMIZER_STEP and kind_of_work(op) == "matmul"
