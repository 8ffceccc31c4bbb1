"""Logits whose classes are gathered for a cross entropy, which could be made of parts."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.needless.needless import candidates, none_needless, on_all_ranks
from shardtoll.analyzers.shared import remedy_code
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.tally import Line, keep, number, tally, with_columns
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, place, some_size
from shardtoll.ledger.words.human import plural as times

WARNING_SHARE: Final = 0.01
"""Share of the step that the remedy saves from which it is a warning."""

REDUCTIONS: Final = 3
"""All_reduces of one number a token that loss_parallel needs: the largest logit, the sum, the label's."""

ROUNDS: Final = 2
"""Latency of an all_reduce over that of the all_gather: a ring goes round twice."""

DTENSOR: Final = ("ColwiseParallel", "PrepareModule", "DTensor", "parallelize_module")
"""Causes that begin so gather a DTensor, whose placement a plan says."""

KEYS: Final = ("group", "net", "phase", "caused_by_op", "module", "source", "loss_classes", "bulky")
VALUES: Final = ("exposed_ns", "saved_ns", "message_bytes")


@once
def gathered(context: Context) -> pd.DataFrame:
    """Return the all_gathers of surveyed steps whose classes `F.cross_entropy` read, all on every rank.

    Those that DTensor inserts by itself are implicit redistributes.
    """
    if not context.tells("loss_classes"):
        return none_needless(context)
    frame = candidates(context, "all_gather")
    frame = keep(frame, ~hidden(frame))
    return on_all_ranks(frame, frame["loss_classes"].notna())


def find(context: Context) -> list[Finding]:
    """Return one finding a place.

    Saving: the toll without waiting for late ranks, less the latency of what loss_parallel reduces instead;
    unknown if the fabric's latency is.
    """
    frame = gathered(context)
    if frame.empty:
        return []
    moving = frame["exposed_ns"].where(
        frame["exposed_ns"] == 0, frame[["exposed_ns", "transfer_ns"]].min(axis=1)
    )
    moving = moving.where(frame["transfer_ns"].notna() | (frame["exposed_ns"] == 0))
    instead = REDUCTIONS * ROUNDS * frame["expected_latency_ns"]
    # Three small messages may take as long as a gather that is hardly more than latency.
    bulky = (2 * frame["expected_latency_ns"] < frame["expected_ns"]).fillna(False).astype(bool)
    bulky = bulky.groupby(frame["match_id"]).transform("all")
    frame = with_columns(
        frame, bulky=bulky, saved_ns=(moving.astype("Int64") - instead.astype("Int64")).clip(lower=0)
    )
    result = tally(frame, KEYS, VALUES, context.surveyed)
    return [_finding(context, line, Rows.of(collectives=result.places(line))) for line in result.lines]


def _finding(context: Context, line: Line, rows: Rows) -> Finding:
    toll, saved = line.figures["exposed_ns"], line.figures["saved_ns"]
    saving = None if toll is None or saved is None else min(toll, saved)
    bulky = line.first["bulky"] and (context.share_as_watched(saving) or 0.0) >= WARNING_SHARE
    classes, module, moved = (
        number(line.first["loss_classes"]),
        line.text("module"),
        line.figures["message_bytes"],
    )
    return Finding(
        kind="gathered-logits",
        severity="warning" if bulky else "info",
        title=f"{times(line.each, 'all_gather')} per step on {line.first['net']} in {line.first['phase']}"
        f"{place(module, line.text('source'))} puts {classes:,} classes of the logits together for "
        f"cross_entropy: {some_size(moved)}, {duration(toll)} exposed",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=saving,
        bytes=moved,
        count=line.count,
        ranks=line.ranks,
        where=line.where("phase", "module", "source", "group", "mesh_dim", op=line.text("caused_by_op")),
        rows=rows,
        evidence=(
            Evidence("collective", "all_gather"),
            Evidence("classes that cross_entropy read, on each rank", classes),
            Evidence("in all surveyed steps and ranks", line.total),
            Evidence("all_reduces of one number a token in its place", REDUCTIONS),
            Evidence("taken for granted", "nothing but the loss needs the logits of all classes"),
        ),
        figures=() if classes is None else (Figure("classes", classes, "count"),),
        remedy=Remedy(
            "Leave the logits sharded over the classes and let loss_parallel reduce three numbers a token; "
            "backward has to run within it too.",
            _code(line, module),
            None
            if saving is None
            else "the same step with three all_reduces of one number a token, at the fabric's latency, in "
            "place of this all_gather",
        ),
        confidence="likely",
    )


def _code(line: Line, module: str | None) -> str:
    """Return the lines to write: the plan of the head, or a DTensor made of this rank's part."""
    loss = "with loss_parallel():\n    loss = F.cross_entropy(logits, labels)\n    loss.backward()"
    if (line.text("caused_by_op") or "").startswith(DTENSOR):
        head = remedy_code.quoted(module if module and "*" not in module else "head")
        style = "ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)"
        return f"plan[{head}] = {style}  # and its input_layouts\n{loss}"
    mesh = remedy_code.mesh(line.text("mesh_dim"))
    return (
        f"logits = DTensor.from_local(part, {mesh}, [Shard(-1)])  # part: as it was before the gather\n{loss}"
    )
