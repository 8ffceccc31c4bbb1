"""DDP that looks for unused parameters in every step and finds none."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.habits.habit import habits, price
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy
from shardtoll.ledger.records.ddp_causes import USED_PARAMETERS
from shardtoll.ledger.words.human import duration, place

KEYS: Final = ("group", "net", "source")


@once
def find(context: Context) -> list[Finding]:
    """Return one finding a group and line whose backwards reached all parameters, in all surveyed steps."""
    rows = context.in_steps
    frame = keep(rows, rows["caused_by_op"] == USED_PARAMETERS)
    findings = []
    for habit in habits(context, frame, KEYS, context.surveyed):
        if not habit.rows["all_used"].fillna(False).astype(bool).all():
            continue
        line = habit.line
        cost = price(context, line)
        findings.append(
            Finding(
                kind="unused-parameter-search",
                severity=cost.severity,
                title="DDP looks for unused parameters in each backward and finds none on "
                f"{line.first['net']}{place(None, line.text('source'))}: its all_reduce of what was used "
                f"costs {duration(cost.toll_ns)} per step",
                toll_ns=cost.toll_ns,
                floor_ns=0,
                saving_ns=cost.saving_ns,
                bytes=line.figures["message_bytes"],
                count=line.count,
                ranks=line.ranks,
                where=line.where("phase", "source", "group", "mesh_dim", op=USED_PARAMETERS),
                rows=habit.spoken,
                evidence=(
                    Evidence("surveyed steps", len(context.surveyed)),
                    Evidence("backwards that reached every parameter", len(habit.rows)),
                    Evidence("taken for granted", "no later step leaves a parameter out"),
                ),
                remedy=Remedy(
                    "Turn the search for unused parameters off. If a later step leaves a parameter out, "
                    "DDP raises an error.",
                    "DistributedDataParallel(model, find_unused_parameters=False)",
                    cost.against("this all_reduce"),
                ),
                confidence="likely",
            )
        )
    return findings
