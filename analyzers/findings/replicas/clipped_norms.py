"""Which of the norms that torch took a program clips by, and of which gradients together."""

from __future__ import annotations

import math
from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.replicas.agreement import rows_of
from shardtoll.analyzers.shared.tally import keep

ALONE: Final = "get_total_norm"
"""Ends the name of the call that takes a norm and clips nothing."""
GIVEN: Final = "clip_grads_with_norm_"
"""Ends the name of the call that clips by a norm it is given."""


def clipped_by(context: Context, norms: pd.DataFrame, of: pd.DataFrame, least: float) -> pd.DataFrame:
    """Return the norms that a program clips by, without those from which it is still to make one.

    The result of `get_total_norm` is an intermediate in three cases. The clipping was then given a norm; the
    result covers some of the rank's gradients only; or ranks add it, or its square, up. (`least`: relative
    tolerance.)
    """
    kinds = norms["name"].astype(str)
    halfway = kinds.str.endswith(ALONE)
    if not halfway.any():
        return norms
    given = set(norms[kinds.str.endswith(GIVEN).to_numpy(dtype=bool)]["step"])
    gradients = rows_of(context, "gradient")
    all_of = gradients.groupby(["step", "rank"])["name"].nunique()
    taken = of.groupby(["step", "rank", "nth"])["name"].nunique()
    frame = context.in_steps
    sums = keep(frame, (frame["op"] == "all_reduce") & frame["number_sent"].notna())
    sent = sums.groupby(["step", "rank"])["number_sent"].agg(list).to_dict()
    row: Any
    whole = []
    for row in norms.itertuples(index=False):
        step_and_rank, square = (row.step, row.rank), float(row.square)
        some = int(taken.get((row.step, row.rank, row.nth), 0)) < int(all_of.get(step_and_rank, 0))
        passed_on = any(
            abs(number / norm - 1) < least
            for number in sent.get(step_and_rank, [])
            for norm in (square, math.sqrt(square))
            if norm > 0
        )
        whole.append(not (row.step in given or some or passed_on))
    return keep(norms, ~halfway | pd.Series(whole, index=norms.index, dtype=bool))


def as_one(norms: pd.DataFrame, of: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give one number to the calls of a step that clip by one given norm, each some of the gradients."""
    given = norms[norms["name"].astype(str).str.endswith(GIVEN).to_numpy(dtype=bool)]
    first = given.groupby(["step", "rank", "square"])["nth"].transform("min")
    calls = zip(given["step"], given["rank"], given["nth"], strict=True)
    joined = {key: int(nth) for key, nth in zip(calls, first, strict=True)}
    if all(nth == key[2] for key, nth in joined.items()):
        return norms, of

    def renumbered(rows: pd.DataFrame) -> pd.DataFrame:
        keys = zip(rows["step"], rows["rank"], rows["nth"], strict=True)
        renamed: pd.DataFrame = rows.assign(nth=[joined.get(key, key[2]) for key in keys])
        return renamed

    return renumbered(norms).drop_duplicates(["step", "rank", "nth"]), renumbered(of)
