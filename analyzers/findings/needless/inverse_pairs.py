"""Collectives that undo what was done just before: cut and gathered again, moved there and back."""

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
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, keep, with_columns
from shardtoll.ledger import Finding, Remedy

PLACE = ("rank", "step", "group")

SAME_ON_ALL = ("all_reduce", "all_gather", "broadcast")
"""Collectives whose result is equal on all ranks."""


@once
def gathered_again(context: Context) -> pd.DataFrame:
    """Return the all_gathers whose result every rank had before, with `first`: what had given it.

    The input was cut from what the gather gives back and was not written to since. The whole is equal on all
    ranks: DTensor's placements call it replicated (`first` unknown), or an earlier collective gave it.
    """
    if not context.tells("output_hash"):
        return none_needless(context)
    frame = candidates(context, "all_gather", "all_reduce", "broadcast", "all_to_all")
    frame = keep(frame, frame["output_hash"].notna())
    if frame.empty:
        return without_first(frame)
    gathers = keep(frame, (frame["op"] == "all_gather") & (frame["cut_from_hash"] == frame["output_hash"]))
    results = keep(frame, frame["output_content"].notna() & frame["op"].isin(SAME_ON_ALL))
    results = with_columns(results, first=results.index, first_at=results["at"])
    result = ["rank", "step", "group", "output_hash", "output_content"]
    given = ["rank", "step", "group", "cut_from_hash", "cut_from_content"]
    joined = gathers[[*given, "at"]].merge(
        results.drop_duplicates(result)[[*result, "first", "first_at"]],
        how="left",
        left_on=given,
        right_on=result,
    )
    before = (joined["first_at"] < joined["at"]).fillna(False).to_numpy(dtype=bool)
    gathers = with_columns(gathers, first=joined["first"].where(before).to_numpy())
    by_placement = gathers["cut_by_placement"].fillna(False).astype(bool)
    return on_all_ranks(gathers, by_placement | gathers["first"].notna())


@once
def there_and_back(context: Context) -> pd.DataFrame:
    """Return the all_to_alls that give back what the one before, their `first`, was given.

    The second sends the memory in which the first put its result, unchanged. An expert that changes nothing
    as yet writes other memory.
    """
    if not context.tells("output_hash"):
        return none_needless(context)
    frame = candidates(context, "all_to_all")
    columns = ["input_hash", "output_hash", "output_content"]
    before = frame.groupby(list(PLACE))[columns].shift()
    first = pd.Series(frame.index, index=frame.index).groupby([frame[name] for name in PLACE]).shift()
    back = (frame["input_hash"] == before["output_hash"]) & (frame["output_hash"] == before["input_hash"])
    back &= frame["input_content"] == before["output_content"]
    return on_all_ranks(with_columns(frame, first=first), back.fillna(False))


@once
def scattered_and_gathered(context: Context) -> pd.DataFrame:
    """Return the all_gathers of what the reduce_scatter before, their `first`, gave, as it was."""
    if not context.tells("output_hash"):
        return none_needless(context)
    frame = candidates(context, "reduce_scatter", "all_gather")
    first = pd.Series(frame.index, index=frame.index).groupby([frame[name] for name in PLACE]).shift()
    before = context.collectives.reindex(first)
    linked = (
        (frame["op"] == "all_gather").to_numpy(dtype=bool)
        & (before["op"] == "reduce_scatter").to_numpy(dtype=bool, na_value=False)
        & before["used_by"].fillna("").str.contains("all_?gather").to_numpy(dtype=bool)
        & (frame["input_hash"].array == before["output_hash"].array).to_numpy(dtype=bool, na_value=False)
    )
    return on_all_ranks(with_columns(frame, first=first), linked)


def find(context: Context) -> list[Finding]:
    """Return one finding a place and story."""
    results = []
    for rows, tell in (
        (gathered_again(context), _again),
        (there_and_back(context), _back),
        (scattered_and_gathered(context), _as_one),
    ):
        if not rows.empty:
            paired = with_first(context, rows, rows["first"])
            results += findings(context, paired, tell, ("read_carries_gradient", "first_reduce_op"))
    return results


def _again(line: Line) -> Told:
    was = line.text("first_op")
    own = "whole" if _carries(line) else "whole.detach()"
    dtensor = (line.text("caused_by_op") or "").startswith(("DTensor", "aten"))
    return Told(
        "rebuilt a tensor that every rank had sliced just before"
        if was is None
        else f"gave back what every rank had: what the {was} before had given already",
        Remedy(
            text="Keep the whole tensor and slice it for each use: a slice needs no communication.",
            code="y = f(x)  # x stays Replicate: no redistribute to Shard and back"
            if dtensor
            else f"part = whole.chunk(ranks)[rank]\ny = {own}  # in place of what is gathered",
            counterfactual="the same step without this all_gather, the whole kept instead",
        ),
    )


def _carries(line: Line) -> bool:
    """Return whether a gradient flows back through the result: a plain collective's carries none."""
    carries = line.first["read_carries_gradient"]
    return not pd.isna(carries) and bool(carries)


def _back(line: Line) -> Told:
    own = "x" if _carries(line) else "x.detach()"
    return Told(
        "gave back what the all_to_all before it had been given, unchanged",
        Remedy(
            text="Leave out the second, as nothing is computed between the two. Leave out the first too if "
            "nothing else reads its result.",
            code=f"y = {own}  # what the first all_to_all is given, in place of what the second gives",
            counterfactual="the same step without this all_to_all; the one before it goes as well",
        ),
    )


def _as_one(line: Line) -> Told:
    reduce_op = line.text("first_reduce_op") or "SUM"
    return Told(
        "gathered the unchanged result of the reduce_scatter before it: together they are an all_reduce",
        Remedy(
            text="Use one all_reduce: it moves the same bytes in one call, and nothing computes on the parts "
            "in between. Or compute on the parts and gather later. Leave it if it saves memory or overlaps "
            "on purpose.",
            code=f"dist.all_reduce(x, op=dist.ReduceOp.{reduce_op})  # in place of both",
        ),
        severity="info",
    )
