"""Reductions of values that are equal on all ranks already."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.needless import Told, candidates, findings, on_all_ranks, with_first, without_first
from shardtoll.analyzers.partly_used import FROM_LOCAL
from shardtoll.analyzers.tally import Line, keep
from shardtoll.ledger import Evidence, Finding, Remedy

REDUCTIONS = ("all_reduce", "reduce_scatter")


@once
def equal_inputs(context: Context) -> pd.DataFrame:
    """Return the reductions of equal inputs on all ranks, with `first`: the all_reduce that made them equal.

    Constants and scalars have no fingerprint and are left out. Gradients of parameters are equal where ranks
    saw equal data too, which is no fault of the reduction: of those only what had been reduced before counts.
    """
    frame = candidates(context, *REDUCTIONS)
    frame = keep(frame, frame["input_hash"].notna())
    if frame.empty:
        nothing: pd.DataFrame = frame.assign(first=None)
        return nothing
    inputs = frame.groupby("match_id")["input_hash"].transform("nunique")
    frame = on_all_ranks(frame, inputs == 1)
    reduced = keep(context.in_surveyed, context.in_surveyed["op"] == "all_reduce")
    reduced = keep(reduced, reduced["output_hash"].notna())
    reduced = reduced.assign(first=reduced.index, first_at=reduced["issue_ns"].fillna(reduced["start_ns"]))
    reduced = reduced.drop_duplicates(["rank", "step", "group", "output_hash"])
    joined = frame[["rank", "step", "group", "input_hash", "at"]].merge(
        reduced[["rank", "step", "group", "output_hash", "first", "first_at"]],
        how="left",
        left_on=["rank", "step", "group", "input_hash"],
        right_on=["rank", "step", "group", "output_hash"],
    )
    before = (joined["first_at"] < joined["at"]).fillna(False).to_numpy(dtype=bool)
    frame = frame.assign(first=joined["first"].where(before).to_numpy())
    return on_all_ranks(frame, frame["first"].notna() | frame["parameter"].isna())


@once
def needless(context: Context) -> pd.DataFrame:
    """Return the needless one of each pair, with the other one as `first`.

    What is reduced again by a reduce_scatter need not have been reduced before; else the second is needless.
    """
    frame = equal_inputs(context)
    if frame.empty:
        return without_first(frame)
    early = ((frame["op"] == "reduce_scatter") & frame["first"].notna()).to_numpy(dtype=bool)
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
    other, reduce_op = line.text("first_op"), line.text("reduce_op") or "SUM"
    ranks = int(line.first["group_size"])
    times = f", and a sum multiplies them by {ranks}" if reduce_op == "SUM" else ""
    evidence = (Evidence("reduced by", reduce_op), Evidence("ranks with equal inputs", ranks))
    cause, op = line.text("caused_by_op") or "", str(line.first["op"])
    if other == "reduce_scatter":
        return Told(
            f"made equal on all ranks what the reduce_scatter after it reduces again{times}",
            _before_scatter(cause, line.text("source")),
            evidence=evidence,
        )
    if other is not None:
        what = f"reduced what the {other} before it had made equal on all ranks{times}"
    else:
        what = f"reduced values that were equal on all {ranks} ranks already{times}"
    return Told(
        what,
        Remedy(
            text=f"Leave out this {op}: every rank has the values. Where the factor of {ranks} is meant, "
            "multiply instead; where it is not, the result is wrong by it.",
            code=f"x = x  # each rank has it; x * {ranks} where the sum over the ranks is meant"
            if reduce_op == "SUM"
            else "x = x  # each rank has it",
            counterfactual="the same step without this reduction",
        ),
        confidence="certain" if other is not None else "likely",
        evidence=evidence,
    )


def _before_scatter(cause: str, source: str | None) -> Remedy:
    counterfactual = "the same step with the reduce_scatter alone"
    if cause == FROM_LOCAL:
        return Remedy(
            text=f"DTensor.from_local at {source or 'that line'} says Replicate, so backward all_reduces the "
            "gradient there, although the code around it reduces by itself. Say that the gradient stays "
            "Partial.",
            code="x = DTensor.from_local(x, mesh, [Replicate()], grad_placements=[Partial()])",
            counterfactual=counterfactual,
        )
    return Remedy(
        text="Hand the values to the reduce_scatter as they are: it sums them.",
        code="dist.reduce_scatter_tensor(part, partial_sums)  # no all_reduce before",
        counterfactual=counterfactual,
    )
