"""Computing by place, step by step: by module, or by operator if a trace names no modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.shared.layer_names import pattern
from shardtoll.analyzers.shared.tally import codes
from shardtoll.analyzers.two_runs.steps import tabulated
from shardtoll.ledger import Report
from shardtoll.ledger.records.levels import in_steps
from shardtoll.ledger.records.work import OPTIMIZER_STEP
from shardtoll.ledger.tables.tables import to_frame

MOST: Final = 300
"""Modules kept separate; with more of them layers are taken as one."""
NO_MODULE: Final = "outside all modules"

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Module:
    """Computing of one module (or operator), each step a mean over ranks."""

    time: Array | None
    """(steps,) ns; None if durations are unknown."""
    flops: Array
    """(steps,)"""
    formats: str
    """Number formats of the operators' inputs, as `bf16` or `bf16, f32`."""
    signature: frozenset[tuple[str, str]]
    """Operators and shapes: what stays the same where the work is the same."""


def modules(reports: tuple[Report, Report], numbers: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[
    dict[str, Module], dict[str, Module]
]:  # fmt: skip
    """Return name -> computing of both runs: of modules if both have them, else of operators."""
    frames = [_live(report, steps) for report, steps in zip(reports, numbers, strict=True)]
    if any(frame.empty or frame["duration_ns"].isna().all() for frame in frames):
        traced = [_traced(report, steps) for report, steps in zip(reports, numbers, strict=True)]
        if not any(frame.empty for frame in traced):
            frames = traced
    if any(frame["name"].nunique() > MOST for frame in frames):
        frames = [frame.assign(name=pattern(frame["name"])) for frame in frames]
    made = [
        _modules(frame, steps, len(report.run.ranks_seen))
        for frame, steps, report in zip(frames, numbers, reports, strict=True)
    ]
    return made[0], made[1]


def _live(report: Report, numbers: tuple[int, ...]) -> pd.DataFrame:
    columns = ["step", "rank", "op", "shapes", "flops", "duration_ns", "module"]
    frame = to_frame(in_steps(report.tables["computes"].select(columns), numbers)).reset_index(drop=True)
    name = frame["module"].astype("string").fillna(NO_MODULE)
    name = name.where(name != "", "the root module")
    named: pd.DataFrame = frame.assign(name=name.where(frame["op"] != OPTIMIZER_STEP, "optimizer"))
    return named


def _traced(report: Report, numbers: tuple[int, ...]) -> pd.DataFrame:
    frame = to_frame(in_steps(report.tables["device_ops"], numbers)).reset_index(drop=True)
    op = frame["op"].astype("string").fillna("kernels of no known operator")
    made: pd.DataFrame = pd.DataFrame(
        {
            "step": frame["step"],
            "rank": frame["rank"],
            "op": op,
            "shapes": frame["shapes"].astype("string").fillna(""),
            "flops": frame["flops"].fillna(0),
            "duration_ns": frame["device_ns"],
            "name": op + " in " + frame["phase"].astype("string"),
        }
    )
    return made


def _modules(frame: pd.DataFrame, numbers: tuple[int, ...], ranks: int) -> dict[str, Module]:
    if frame.empty:
        return {}
    code, first = codes(frame, ["name"])
    step = frame["step"].to_numpy(dtype=np.int64)
    took = frame["duration_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    work = frame["flops"].to_numpy(dtype=np.float64, na_value=0)
    times = tabulated(code, len(first), step, numbers, took, ranks)
    flops = tabulated(code, len(first), step, numbers, work, ranks)
    kinds = frame.assign(code=code)[["code", "op", "shapes"]].drop_duplicates()
    signatures: dict[int, set[tuple[str, str]]] = {}
    for row in kinds.itertuples(index=False):
        signatures.setdefault(int(row.code), set()).add((str(row.op), str(row.shapes)))
    return {
        str(name): Module(
            time=None if np.isnan(times[row]).any() else times[row],
            flops=flops[row],
            formats=_formats(signatures[row]),
            signature=frozenset(signatures[row]),
        )
        for row, name in enumerate(first["name"])
    }


def _formats(signature: set[tuple[str, str]]) -> str:
    """Return the formats in shapes as `f32[64,32] bf16[32]`, those of no float left out."""
    formats = {word.partition("[")[0] for _, shapes in signature for word in shapes.split() if "[" in word}
    return ", ".join(sorted(name for name in formats if name.startswith(("f", "bf")) and len(name) <= 12))
