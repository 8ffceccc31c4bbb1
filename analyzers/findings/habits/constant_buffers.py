"""Buffers that DDP broadcasts at each forward although they never change."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.habits.habit import habits, price
from shardtoll.analyzers.shared.ddp_options import no_buffers
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.sampled import SAMPLED, is_sampled
from shardtoll.analyzers.shared.tally import keep, with_columns
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.records.ddp_causes import BUFFERS
from shardtoll.ledger.words.human import duration, place, some_size

KEYS: Final = ("group", "net", "source")


@once
def find(context: Context) -> list[Finding]:
    """Return one finding a group and line whose buffers hold equal values in all surveyed steps and ranks.

    All of them: DDP broadcasts all buffers or none. A buffer with a single value throughout, as a counter,
    has no fingerprint; then no finding is made. Only a sample of a large buffer is compared. A change in a
    few rows, as in a bank of features, may be missed.
    """
    rows = context.in_steps
    frame = keep(rows, (rows["caused_by_op"] == BUFFERS) & (rows["op"] == "broadcast"))
    findings = []
    for habit in habits(context, frame, KEYS, context.surveyed):
        if not _constant(habit.rows):
            continue
        line = habit.line
        sampled = bool(is_sampled(habit.rows).any())
        never = "seem never to" if sampled else "never"
        cost, moved = price(context, line), line.figures["message_bytes"]
        findings.append(
            Finding(
                kind="constant-buffers",
                severity=cost.severity,
                title=f"DDP broadcasts buffers that {never} change in each forward: "
                f"{some_size(moved)} per step on {line.first['net']}{place(None, line.text('source'))}, "
                f"{duration(cost.toll_ns)} exposed",
                toll_ns=cost.toll_ns,
                floor_ns=0,
                saving_ns=cost.saving_ns,
                bytes=moved,
                count=line.count,
                ranks=line.ranks,
                where=line.where("phase", "source", "group", "mesh_dim", op=BUFFERS),
                rows=habit.spoken,
                evidence=(
                    Evidence("steps whose buffers were compared", len(context.surveyed)),
                    Evidence("broadcasts compared", len(habit.rows)),
                    *((SAMPLED,) if sampled else ()),
                    Evidence("taken for granted", "no later step changes a buffer on one rank alone"),
                ),
                remedy=Remedy(
                    "Turn the broadcast off: every rank already has the same values."
                    + (" First check whether a step writes a part of a large buffer." if sampled else ""),
                    no_buffers(context.ledger.run.torch),
                    cost.against("these broadcasts"),
                ),
                confidence="possible" if sampled else "likely",
            )
        )
    return findings


def _constant(rows: pd.DataFrame) -> bool:
    """Whether each broadcast of a step has the same fingerprint in all steps and ranks, and all have one."""
    if rows["input_hash"].isna().any() or rows["message_bytes"].isna().any():
        return False
    place_in_step = rows.groupby(["rank", "step", "message_bytes", "dtype"], dropna=False).cumcount()
    of_place = with_columns(rows, nth=place_in_step).groupby(["message_bytes", "dtype", "nth"], dropna=False)
    calls = of_place["step"].nunique()
    return bool((of_place["input_hash"].nunique() == 1).all() and (calls == rows["step"].nunique()).all())
