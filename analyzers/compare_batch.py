"""How many samples a step takes, as far as the record tells."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from shardtoll.analyzers.micro_batches import beginnings
from shardtoll.ledger import Report
from shardtoll.ledger.comparison import Batch
from shardtoll.ledger.levels import in_steps
from shardtoll.ledger.tables import to_frame
from shardtoll.ledger.work import OPTIMIZER_STEP

_FIRST: Final = re.compile(r"\[(\d+)")
_MATRIX: Final = re.compile(r"\[(\d+),")
"""The first operand with two dimensions: a bias, which has one, may stand before it."""


def batch(report: Report, numbers: tuple[int, ...]) -> Batch:
    """Return the parts of the effective batch in these (surveyed) steps.

    Rows are the first dimension of the model's first tensor argument, where `checks=("data",)` kept it; else
    of what the first operator with FLOPs read, which may be samples x tokens, so it tells whether two runs
    are alike, not how many samples there are. How many ranks have data of their own is told by the
    fingerprints of the arguments; without them it is unknown.
    """
    values = report.values
    inputs = values[(values["kind"] == "input") & values["step"].isin(numbers)]
    # Of a number, which has no dimension, nothing is told.
    inputs = inputs[[_FIRST.search(str(shape)) is not None for shape in inputs["shape"]]]
    if len(inputs):
        name = str(inputs["name"].iloc[0])
        mine = inputs[inputs["name"] == name]
        one = mine[(mine["step"] == mine["step"].iloc[0]) & (mine["nth"] == mine["nth"].iloc[0])]
        known = one["hash"].dropna()
        return Batch(
            rows=_leading(_FIRST, str(mine["shape"].iloc[0])),
            rows_of=f"model input {name}",
            ranks=int(known.nunique()) if len(known) == len(one) else None,
            micro_batches=int(mine.groupby(["step", "rank"])["nth"].nunique().max()),
        )
    columns = ["step", "rank", "index", "op", "phase", "shapes", "start_ns"]
    computes = to_frame(in_steps(report.tables["computes"].select(columns), numbers))
    computes = computes[computes["op"] != OPTIMIZER_STEP]
    if computes.empty:
        return Batch(None, None, None, None)
    first = computes.sort_values(["step", "rank", "start_ns"], kind="stable").iloc[0]
    rank, _ = beginnings(computes, backward=False)
    passes = int(np.bincount(rank).max()) / len(numbers) if len(rank) else None
    return Batch(
        rows=_leading(_MATRIX, str(first["shapes"])),
        rows_of=f"first operator, {first['op']}",
        ranks=None,
        micro_batches=None if passes is None else max(1, round(passes)),
    )


def _leading(which: re.Pattern[str], shape: str) -> int | None:
    """Return the first dimension of `[64, 32]` or of `f32[32] f32[64,32]`."""
    found = which.search(shape)
    # More digits are no size of a tensor: the record may be anything.
    return int(found[1]) if found and len(found[1]) <= 15 else None


def words(one: Batch, world_size: int) -> str:
    """Return it as `8 rows x 4 ranks x 2 micro-batches = 64`."""
    whole = one.effective(world_size)
    if whole is None:
        return "unknown"
    ranks = f"{one.ranks} ranks with data of their own" if one.ranks else f"{world_size} ranks"
    passes = f"{one.micro_batches} micro-batch{'es' if one.micro_batches != 1 else ''}"
    return f"{whole:,} ({one.rows:,} rows x {ranks} x {passes})"
