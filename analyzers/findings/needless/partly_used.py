"""Collectives whose result is needless in part: every rank reads no more than one rank's share."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless import (
    Told,
    candidates,
    findings,
    none_needless,
    on_all_ranks,
    without_first,
)
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, keep, number
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.words.human import some_size

FROM_LOCAL = "DTensor.from_local"

PARTIAL_GRADIENT: Final = "x = DTensor.from_local(x, mesh, [Replicate()], grad_placements=[Partial()])"


@once
def partly_used(context: Context) -> pd.DataFrame:
    """Return the all_reduces and all_gathers of which each rank read some bytes, but at most its share.

    This must hold on every rank of the group: if one rank reads all of the result, it is needed. Each rank
    has to read its own even part along one dimension, element by element. For a gather that part must equal,
    in value and order, the rank's input. If a wrapper's buffer is read, or compiled code may read unseen, the
    bytes read are unknown and there is no finding.
    """
    if not context.tells("read_dimension"):
        return none_needless(context)
    frame = candidates(context, "all_reduce", "all_gather")
    share = frame["used_bytes"] * frame["group_size"]
    own = (frame["used_bytes"] > 0) & (share == frame["message_bytes"]) & frame["read_dimension"].notna()
    sent = (frame["read_hash"] == frame["input_hash"]).fillna(False)
    frame = on_all_ranks(frame, own.fillna(False) & (sent | (frame["op"] == "all_reduce")))
    dimensions = frame.groupby("match_id")["read_dimension"].transform("nunique")
    return keep(frame, dimensions == 1)


def find(context: Context) -> list[Finding]:
    """Return one finding a place.

    An all_reduce of which a share is used could be a reduce_scatter, which sends half the bytes. So half of
    its time is claimed. An all_gather of whose result each rank reads its own share can be spared altogether.
    If a rank reads others' parts, capture does not know how much it read.
    """
    frame = partly_used(context)
    return findings(
        context, without_first(frame), _told, ("read_dimension", "read_carries_gradient", "reduce_op")
    )


def _told(line: Line) -> Told:
    op, used, ranks = str(line.first["op"]), number(line.first["used_bytes"]), int(line.first["group_size"])
    reader = line.text("used_by")
    text = f"each of {ranks} ranks read {some_size(used)} at most, 1/{ranks} of a result"
    evidence = (
        Evidence("read of one result", used, "bytes"),
        Evidence("first taken apart or read by", reader),
    )
    dim, cause, source = (
        int(line.first["read_dimension"]),
        line.text("caused_by_op") or "",
        line.text("source"),
    )
    carries = line.first["read_carries_gradient"]
    remedy = (
        _scattered(cause, source, dim, line.text("reduce_op") or "SUM")
        if op == "all_reduce"
        else _ungathered(cause, source, carries_gradient=not pd.isna(carries) and bool(carries))
    )
    return Told(
        f"{text}: {'a reduce_scatter would do' if op == 'all_reduce' else 'gathered, then cut again'}",
        remedy,
        saved=0.5 if op == "all_reduce" else 1.0,
        confidence="likely",
        evidence=evidence,
    )


def gathered_by_dtensor(dim: int) -> str:
    """Return the code that does the same if `from_local` has no `grad_placements`, as in torch 2.11."""
    return (
        "# if from_local takes no grad_placements: gather part by DTensor, whose backward reduce_scatters\n"
        f"# x = DTensor.from_local(part, mesh, [Shard({dim})]).redistribute(placements=[Replicate()])"
    )


def _scattered(cause: str, source: str | None, dim: int, reduce_op: str) -> Remedy:
    counterfactual = "a reduce_scatter in its place, which sends half of an all_reduce's bytes"
    if cause == FROM_LOCAL:
        return Remedy(
            text=f"Let the gradient of DTensor.from_local at {source or 'that line'} stay Partial, and "
            "reduce_scatter it where it is cut. It says Replicate, so backward reduces the gradient on every "
            "rank and keeps only a part.",
            code=f"{PARTIAL_GRADIENT}\n"
            "# and in the backward of what gathered x:\n"
            "dist.reduce_scatter_tensor(part, grad)\n"
            f"{gathered_by_dtensor(dim)}",
            counterfactual=counterfactual,
        )
    if cause.startswith("RowwiseParallel"):
        text = "Have the style leave its output sharded: it then reduces and scatters in one."
        code = f"RowwiseParallel(output_layouts=Shard({dim}))"
    elif cause.startswith("DTensor"):
        text = "Redistribute the pending sum to Shard at once: that is a reduce_scatter."
        code = f"part = x.redistribute(placements=[Shard({dim})]).to_local()"
    else:
        text = "Use reduce_scatter: each rank keeps its own part only, and that is half the bytes."
        code = (
            f"parts = [each.contiguous() for each in x.chunk(dist.get_world_size(group), {dim})]\n"
            "part = torch.empty_like(parts[0])\n"
            f"dist.reduce_scatter(part, parts, op=dist.ReduceOp.{reduce_op}, group=group)"
            "  # in place of all_reduce and a slice"
        )
    return Remedy(text=text, code=code, counterfactual=counterfactual)


def _ungathered(cause: str, source: str | None, *, carries_gradient: bool) -> Remedy:
    # A plain collective's result has no gradient, and its part must have none either.
    own = "x" if carries_gradient else "x.detach()"
    code = (
        "part = x.to_local()  # in place of full_tensor() and a slice"
        if cause.startswith("DTensor")
        else f"part = {own}  # what this rank hands to the gather, in place of the gather and the slice"
    )
    return Remedy(
        text=f"Leave out the gather{f' at {source}' if source else ''}: each rank reads its own part of the "
        "whole, which it has already.",
        code=code,
        counterfactual="the same step without this all_gather, each rank keeping its own part",
    )
