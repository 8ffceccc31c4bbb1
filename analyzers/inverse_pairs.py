"""Collectives that undo what was done just before: cut and gathered again, moved there and back."""

from __future__ import annotations

import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.needless import Told, candidates, findings, on_all_ranks, with_first, without_first
from shardtoll.analyzers.tally import Line, keep
from shardtoll.ledger import Finding, Remedy

PLACE = ("rank", "step", "group")


@once
def gathered_again(context: Context) -> pd.DataFrame:
    """Return the all_gathers whose result every rank had before, with `first`: what had given it.

    Either the input was cut from what the gather gives back, on this rank (`first` unknown), or an earlier
    collective of the step had the same result, and not by the same gather: that is a repeat.
    """
    frame = candidates(context, "all_gather", "all_reduce", "broadcast", "all_to_all")
    frame = keep(frame, frame["output_hash"].notna())
    if frame.empty:
        return without_first(frame)
    labels = pd.Series(frame.index, index=frame.index)
    same = frame.groupby(["rank", "step", "message_bytes", "output_hash"])
    first = labels.groupby(same.ngroup()).transform("first")
    frame = frame.assign(first=first.where(first != labels))
    gathers = keep(frame, frame["op"] == "all_gather")
    cut = (gathers["cut_from_hash"] == gathers["output_hash"]).fillna(False)
    # Weights gathered anew for backward have the input of the first gather: a choice for memory.
    inputs = context.collectives["input_hash"].reindex(gathers["first"]).to_numpy()
    known = gathers["first"].notna() & (gathers["input_hash"] != pd.array(inputs, dtype="Int64")).fillna(True)
    return on_all_ranks(gathers, cut | known)


@once
def there_and_back(context: Context) -> pd.DataFrame:
    """Return the all_to_alls that give back what the one before, their `first`, was given."""
    frame = candidates(context, "all_to_all")
    before = frame.groupby(list(PLACE))[["input_hash", "output_hash"]].shift()
    first = pd.Series(frame.index, index=frame.index).groupby([frame[name] for name in PLACE]).shift()
    back = (frame["input_hash"] == before["output_hash"]) & (frame["output_hash"] == before["input_hash"])
    return on_all_ranks(frame.assign(first=first), back.fillna(False))


@once
def scattered_and_gathered(context: Context) -> pd.DataFrame:
    """Return the all_gathers of what the reduce_scatter before, their `first`, gave, as it was."""
    frame = candidates(context, "reduce_scatter", "all_gather")
    first = pd.Series(frame.index, index=frame.index).groupby([frame[name] for name in PLACE]).shift()
    before = context.collectives.reindex(first)
    linked = (
        (frame["op"] == "all_gather").to_numpy(dtype=bool)
        & (before["op"] == "reduce_scatter").to_numpy(dtype=bool, na_value=False)
        & before["used_by"].fillna("").str.contains("all_?gather").to_numpy(dtype=bool)
        & (frame["input_hash"].array == before["output_hash"].array).to_numpy(dtype=bool, na_value=False)
    )
    return on_all_ranks(frame.assign(first=first), linked)


def find(context: Context) -> list[Finding]:
    """Return one finding a place and story."""
    found = []
    for rows, tell in (
        (gathered_again(context), _again),
        (there_and_back(context), _back),
        (scattered_and_gathered(context), _as_one),
    ):
        if not rows.empty:
            found += findings(context, with_first(context, rows, rows["first"]), tell)
    return found


def _again(line: Line) -> Told:
    was = line.text("first_op")
    had = "was cut from just before" if was is None else f"the {was} before had given already"
    dtensor = (line.text("caused_by_op") or "").startswith(("DTensor", "aten"))
    return Told(
        f"gave back what every rank had: what its input {had}"
        if was is None
        else f"gave back what every rank had: what {had}",
        Remedy(
            text="Keep the whole and cut from it where a part is wanted: cutting needs no communication, "
            "and gathering the same again is the inverse of it.",
            code="y = f(x)  # x stays Replicate: no redistribute to Shard and back"
            if dtensor
            else "part = whole.chunk(ranks)[rank]\n...  # and go on with `whole`, not with what is gathered",
            counterfactual="the same step without this all_gather, the whole kept instead",
        ),
    )


def _back(_: Line) -> Told:
    return Told(
        "gave back what the all_to_all before it had been given, unchanged",
        Remedy(
            text="Nothing was computed between the two: leave out both, or move the second past the next "
            "operator that needs the first layout.",
            code="# y = all_to_all(all_to_all(x)) is x\ny = x",
            counterfactual="the same step without this all_to_all; the one before it goes as well",
        ),
    )


def _as_one(_: Line) -> Told:
    return Told(
        "gathers what the reduce_scatter before it gave, as it was: together an all_reduce",
        Remedy(
            text="Nothing works on the parts in between. One all_reduce moves the same bytes in one call; or "
            "do what follows on the parts, and gather later. Meant so (for memory, or to overlap), leave it.",
            code="dist.all_reduce(x)  # in place of reduce_scatter and all_gather",
        ),
        severity="info",
    )
