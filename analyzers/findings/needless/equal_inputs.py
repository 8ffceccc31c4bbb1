"""Reductions of what an all_reduce over the same ranks has made equal already.

Equal values alone prove nothing: ranks may have one seed, equal data or parallel shards that began identical.
"""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless import (
    Told,
    candidates,
    findings,
    none_needless,
    on_all_ranks,
    with_first,
    without_first,
)
from shardtoll.analyzers.findings.needless.partly_used import (
    FROM_LOCAL,
    PARTIAL_GRADIENT,
    gathered_by_dtensor,
)
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, keep, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy

REDUCTIONS = ("all_reduce", "reduce_scatter")

LINEAR = ("SUM", "AVG")
"""Reductions that differ by a factor only, whatever they are given."""

FORESEEN = (*LINEAR, "MIN", "MAX", "BAND", "BOR")
"""Those of equal values that give the value, or a multiple; a product gives a power of it."""


@once
def equal_inputs(context: Context) -> pd.DataFrame:
    """Return the reductions of equal inputs on all ranks, with `first`: the all_reduce that made them equal.

    Its result has to lie untouched in the memory that is reduced again, or in a copy of it. Constants and
    scalars have no fingerprint and are left out.
    """
    frame = candidates(context, *REDUCTIONS)
    frame = keep(frame, frame["input_hash"].notna() & frame["input_content"].notna())
    frame = keep(frame, frame["reduce_op"].fillna("SUM").isin(FORESEEN))
    if frame.empty:
        nothing: pd.DataFrame = with_columns(frame, first=None)
        return nothing
    inputs = frame.groupby("match_id")["input_hash"].transform("nunique")
    frame = on_all_ranks(frame, inputs == 1)
    reduced = keep(context.in_surveyed, context.in_surveyed["op"] == "all_reduce")
    reduced = keep(reduced, reduced["output_hash"].notna())
    reduced = with_columns(
        reduced, first=reduced.index, first_at=reduced["issue_ns"].fillna(reduced["start_ns"])
    )
    reduced = keep(reduced, reduced["output_content"].notna())
    result = ["rank", "step", "group", "output_hash", "output_content"]
    reduced = reduced.drop_duplicates(result)
    given = ["rank", "step", "group", "input_hash", "input_content"]
    joined = frame[[*given, "at"]].merge(
        reduced[[*result, "first", "first_at"]], how="left", left_on=given, right_on=result
    )
    before = (joined["first_at"] < joined["at"]).fillna(False).to_numpy(dtype=bool)
    frame = with_columns(frame, first=joined["first"].where(before).to_numpy())
    return on_all_ranks(frame, frame["first"].notna())


@once
def needless(context: Context) -> pd.DataFrame:
    """Return the needless one of each pair, with the other one as `first`.

    If a reduce_scatter reads the first one's result and reduces it again by the same kind of reduction, the
    first one is needless. Else the second is.
    """
    if not context.tells("input_hash"):
        return none_needless(context)
    frame = equal_inputs(context)
    if frame.empty:
        return without_first(frame)
    read_by = context.collectives["used_by"].reindex(frame["first"]).fillna("")
    early = (frame["op"] == "reduce_scatter").to_numpy(dtype=bool) & read_by.str.contains(
        "reduce_?scatter"
    ).to_numpy(dtype=bool)
    second = frame["reduce_op"].fillna("SUM").to_numpy()
    first = context.collectives["reduce_op"].reindex(frame["first"]).fillna("SUM").to_numpy()
    early &= (first == second) | (pd.Series(first).isin(LINEAR) & pd.Series(second).isin(LINEAR)).to_numpy()
    rows = with_first(context, keep(frame, ~early), keep(frame, ~early)["first"])
    if not early.any():
        return rows
    pairs = keep(frame, early)
    earlier = context.collectives.loc[pairs["first"]].assign(used_bytes=pd.NA)
    earlier = with_first(context, earlier, pairs.index)
    earlier = keep(earlier, ~earlier.index.duplicated())
    both: pd.DataFrame = pd.concat([rows, earlier]) if len(rows) else earlier
    return both


def find(context: Context) -> list[Finding]:
    """Return one finding a place; the needless collective's whole time is the saving."""
    return findings(context, needless(context), _told)


def _told(line: Line) -> Told:
    other, reduce_op = str(line.text("first_op")), line.text("reduce_op") or "SUM"
    ranks = int(line.first["group_size"])
    times = f", and a sum multiplies them by {ranks}" if reduce_op == "SUM" else ""
    evidence = (Evidence("reduced by", reduce_op), Evidence("ranks with equal inputs", ranks))
    cause, op = line.text("caused_by_op") or "", str(line.first["op"])
    if other == "reduce_scatter":
        return Told(
            f"made values equal on all ranks that the next reduce_scatter reduces again{times}",
            _before_scatter(
                cause, line.text("source"), reduce_op, line.text("first_reduce_op") or "SUM", ranks
            ),
            evidence=evidence,
        )
    return Told(
        f"reduced values that the {other} before it had made equal on all ranks{times}",
        _instead(op, reduce_op, ranks, line.text("first_reduce_op") or "SUM"),
        evidence=evidence,
    )


def _instead(op: str, reduce_op: str, ranks: int, first_op: str) -> Remedy:
    """Return what gives the second reduction's result without it."""
    counterfactual = "the same step without this reduction"
    if op == "reduce_scatter":
        factor = f" * {ranks}" if reduce_op == "SUM" else ""
        return Remedy(
            text="Leave out this reduce_scatter and keep a part: every rank has the values"
            + (f", and their sum over the ranks is {ranks} times the value." if factor else "."),
            code=f"part = x.chunk({ranks})[rank]{factor}  # in place of this reduce_scatter",
            counterfactual=counterfactual,
        )
    if reduce_op == "SUM":
        return Remedy(
            text=f"Leave out this {op}: every rank has the values, and their sum over the ranks is "
            f"{ranks} times the value. If the factor of {ranks} is not meant, leave it out as well.",
            code=f"x = x * {ranks}  # in place of this {op}",
            counterfactual=counterfactual,
        )
    return Remedy(
        text=f"Leave out this {op}: every rank already has the values.",
        code=f"dist.all_reduce(x, op=dist.ReduceOp.{first_op})  # once: no {op} of its result",
        counterfactual=counterfactual,
    )


def _before_scatter(cause: str, source: str | None, first_op: str, reduce_op: str, ranks: int) -> Remedy:
    """Return what gives the reduce_scatter's result without the all_reduce before it."""
    counterfactual = "the same step with the reduce_scatter alone"
    if cause == FROM_LOCAL:
        return Remedy(
            text=f"Let the gradient of DTensor.from_local at {source or 'that line'} stay Partial. It says "
            "Replicate, so backward all_reduces the gradient there, although the code around it reduces by "
            "itself.",
            code=f"{PARTIAL_GRADIENT}\n{gathered_by_dtensor(0)}",
            counterfactual=counterfactual,
        )
    code = f"dist.reduce_scatter_tensor(part, x, op=dist.ReduceOp.{reduce_op})  # no all_reduce before"
    text = (
        "Leave out the all_reduce if only the reduce_scatter reads its result: the reduce_scatter sums "
        "the values itself."
    )
    if first_op == "SUM":
        text += f" The result was {ranks} times the sum; if that is not meant, leave the factor out as well."
        code += f"\npart *= {ranks}"
    return Remedy(text=text, code=code, counterfactual=counterfactual)
