"""Operators in one form for traces and live records: FLOPs, bytes, formats, times on the device."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import codes, keep, with_columns
from shardtoll.ledger.records.work import OPTIMIZER_STEP, kind_of_work

Floats = npt.NDArray[np.float64]

FORMATS: Final = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
"""As shapes write a format -> as torch does; all that begin with `float8` are `float8`."""

_OPERAND: Final = re.compile(r"([a-z]+\d+[a-z0-9_]*)\[([\d,]*)\]")
FIGURES: Final = ("count", "flops", "moved_bytes", "device_ns")


class OperatorRows(Struct, frozen=True):
    """One row a step, rank, phase and kind of operator: what all its calls did."""

    frame: pd.DataFrame
    """Columns step, rank, again (computed a second time, for checkpointing), kind (a place in `kinds`);
    count, flops, moved_bytes and device_ns of all calls, as floats with NaN for unknown."""
    kinds: pd.DataFrame
    """Operators on equal shapes: columns op, shapes, and formats, a sorted tuple of those of its matrices."""
    of_trace: bool
    """Whether a trace gives the rows: then all kernels of a step are here, with their times. Live capture
    records operators with FLOPs only."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps with rows."""
        return tuple(sorted(int(step) for step in self.frame["step"].unique()))

    @property
    def kind(self) -> npt.NDArray[np.int64]:
        """Kind of each row."""
        return self.frame["kind"].to_numpy(dtype=np.int64)

    def figure(self, name: str) -> Floats:
        """Return a column of `FIGURES`."""
        return self.frame[name].to_numpy(dtype=np.float64)


@once
def operator_rows(context: Context) -> OperatorRows:
    """Return what a trace tells where there is one, else what capture recorded in the surveyed steps."""
    traced = context.ledger.frame("device_ops")
    traced = keep(traced, traced["step"].isin(context.steps))
    if len(traced):
        return _rows(traced, of_trace=True)
    rows = context.computes_in_steps
    # A length on the host says nothing of a device's; on a CPU it is the operator's own.
    return _rows(with_columns(rows, count=1, device_ns=rows["duration_ns"]), of_trace=False)


def _rows(given: pd.DataFrame, *, of_trace: bool) -> OperatorRows:
    # Each text once: a run has millions of operators and some dozens of shapes.
    ops, op_names = pd.factorize(given["op"])
    shapes, shape_texts = pd.factorize(given["shapes"])
    values = pd.DataFrame(
        {
            "step": given["step"].to_numpy(dtype=np.int64),
            "rank": given["rank"].to_numpy(dtype=np.int64),
            "again": (given["phase"] == "recompute").to_numpy(dtype=bool),
            "op": ops,
            "shapes": shapes,
        }
    )
    values["kind"], different = codes(values, ["op", "shapes"])
    kinds = pd.DataFrame(
        {
            "op": [None if number < 0 else str(op_names[number]) for number in different["op"]],
            "shapes": [None if number < 0 else str(shape_texts[number]) for number in different["shapes"]],
        },
        dtype=object,
    )
    work = pd.Series(index=kinds.index, dtype=object)
    for number, text in enumerate(kinds["shapes"]):
        work[number] = matrix_formats(text or "")
    kinds["formats"] = work
    code, frame = codes(values, ["step", "rank", "again", "kind"])
    frame = frame[["step", "rank", "again", "kind"]].copy()
    for name in FIGURES:
        of_each = given[name].to_numpy(dtype=np.float64, na_value=np.nan)
        frame[name] = sums(code, of_each, len(frame))
    return OperatorRows(frame, kinds, of_trace)


def sums(code: npt.NDArray[np.int64], values: Floats, groups: int) -> Floats:
    """Return the sums by group; NaN if a value is unknown."""
    return np.bincount(code, weights=values, minlength=groups).astype(np.float64)


def matrix_formats(shapes: str) -> tuple[str, ...]:
    """Return the floating-point formats of the operands with two dimensions and more, else of all."""
    operands = [(name, dims.count(",") + bool(dims)) for name, dims in _OPERAND.findall(shapes)]
    named = [
        ("float8" if name.startswith("float8") else FORMATS[name], rank)
        for name, rank in operands
        if name in FORMATS or name.startswith("float8")
    ]
    matrices = {name for name, rank in named if rank > 1}
    return tuple(sorted(matrices or {name for name, _ in named}))


def uses_matrix_units(op: str) -> bool:
    """Whether its FLOPs are those of a model: matmuls, attention, convolutions."""
    return op != OPTIMIZER_STEP and kind_of_work(op) == "matmul"
