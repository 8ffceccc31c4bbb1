"""Gradients that the program reduces by itself before DDP reduces them again."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless import (
    Told,
    findings,
    none_needless,
    with_first,
    without_first,
)
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import Line, begins_with, keep, with_columns
from shardtoll.analyzers.shared.wrapper_causes import WRAPPER_CAUSES
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.records.ddp_causes import REDUCER

LEAST_STEPS: Final = 2
"""Surveyed steps in which every bucket must have been equal on all ranks."""

PHASES: Final = ("backward", "other")


@once
def reduced_before(context: Context) -> pd.DataFrame:
    """Return the program's own all_reduces of gradients, with `first`: a bucket that reduced them again.

    Proven by values: in each surveyed step all of DDP's buckets were equal on all ranks. The program's
    earlier all_reduces of parameters' gradients over the same group sent values that differed, at least as
    many bytes of them. Buckets of a model that is cut by hand, whose backward reduces activations, are equal
    too, and those reductions are needed.
    """
    if not context.tells("input_hash"):
        return none_needless(context)
    frame = context.in_surveyed
    frame = keep(frame, (frame["op"] == "all_reduce") & frame["match_id"].notna() & (frame["group_size"] > 1))
    frame = with_columns(frame, at=frame["issue_ns"].fillna(frame["start_ns"]))
    buckets = keep(frame, frame["caused_by_op"] == REDUCER)
    by_hand = keep(
        frame,
        ~begins_with(frame["caused_by_op"], WRAPPER_CAUSES)
        & frame["phase"].isin(PHASES)
        & frame["parameter"].notna(),
    )
    steps = context.surveyed
    if buckets.empty or by_hand.empty or len(steps) < LEAST_STEPS or not _equal(buckets):
        return without_first(by_hand.iloc[:0])
    of_match = by_hand.groupby("match_id")["input_hash"]
    by_hand = keep(by_hand, of_match.transform("nunique") > 1)
    parts = []
    for (_, rank, step), of_step in buckets.groupby(["group_id", "rank", "step"]):
        group = of_step["group_id"].iloc[0]
        mine = keep(
            by_hand,
            (by_hand["group_id"] == group)
            & (by_hand["rank"] == rank)
            & (by_hand["step"] == step)
            & (by_hand["at"] < of_step["at"].max()),
        )
        if int(mine["message_bytes"].fillna(0).sum()) < int(of_step["message_bytes"].fillna(0).sum()):
            return without_first(by_hand.iloc[:0])
        parts.append(with_columns(mine, first=of_step.index[0]))
    rows = pd.concat(parts)
    seen = rows[["rank", "step"]].drop_duplicates()
    if len(seen) != len(steps) * int(buckets["rank"].nunique()):
        return without_first(by_hand.iloc[:0])
    return with_first(context, rows, rows["first"])


def _equal(buckets: pd.DataFrame) -> bool:
    """Whether each bucket has a fingerprint, and the same one on all ranks of its group."""
    of_match = buckets.groupby("match_id")
    sizes: pd.Series[Any] = of_match["rank"].nunique()
    return bool(
        buckets["input_hash"].notna().all()
        and (of_match["input_hash"].nunique() == 1).all()
        and (sizes == of_match["group_size"].first()).all()
    )


def find(context: Context) -> list[Finding]:
    """Return one finding a place of the program's own reductions; their whole time is the saving."""
    return findings(context, reduced_before(context), _told)


def _told(line: Line) -> Told:
    reduce_op = line.text("reduce_op") or "SUM"
    sums = reduce_op == "SUM"
    ranks = int(line.first["group_size"])
    return Told(
        "reduced gradients that DDP reduces again: each of its buckets was equal on all ranks before",
        Remedy(
            "Remove the hook or the loop that reduces gradients: DDP averages them over the same ranks."
            + (
                f" If its sums are not divided, the gradients become {ranks} times smaller: a mean."
                if sums
                else ""
            ),
            "handle.remove()  # what register_hook returned: DDP averages by itself",
            "the same step with DDP's own reduction alone",
        ),
        evidence=(Evidence("reduced by", reduce_op), Evidence("ranks with equal buckets", ranks)),
    )
