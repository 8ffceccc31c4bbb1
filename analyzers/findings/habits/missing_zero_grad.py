"""Optimizer steps on gradients that were never cleared: they hold all that earlier steps have used."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import Evidence, Finding, Remedy, Rows, Where

SURE: Final = 2
"""Steps in a row from which it is more than likely."""


def find(context: Context) -> list[Finding]:
    """Return at most one finding: on every rank that tells, the last optimizer steps used old gradients."""
    rows = context.in_surveyed
    rows = keep(rows, rows["uncleared_steps"].notna() & rows["optimizer_steps"].notna())
    if rows.empty:
        return []
    order = rows["issue_ns"].fillna(rows["start_ns"]).sort_values(kind="stable").index
    last = rows.loc[order].groupby("rank").last()
    fewest = int(last["uncleared_steps"].min())
    if not fewest or len(last) < len(context.ledger.run.ranks_seen):
        return []
    backward = keep(rows, (rows["phase"] == "backward") & (rows["uncleared_steps"] > 0))
    sources = backward["source"].dropna().unique()
    source = text(sources[0]) if len(sources) == 1 else None
    return [
        Finding(
            kind="missing-zero-grad",
            severity="warning",
            title=f"gradients are not cleared between optimizer steps: {fewest} in a row used gradients that "
            "the step before had used already, so they add up over steps",
            toll_ns=None,
            floor_ns=None,
            saving_ns=None,
            bytes=None,
            count=1,
            ranks=tuple(int(rank) for rank in last.index),
            where=Where(phase="optimizer", source=source),
            rows=Rows.of(collectives=backward.index),
            evidence=(
                Evidence("optimizer steps in a row on uncleared gradients", fewest),
                Evidence(
                    "proof", "each gradient stayed as its optimizer left it until a backward added to it"
                ),
            ),
            remedy=Remedy(
                "Clear the gradients once per optimizer step, after it.",
                "optimizer.step()\noptimizer.zero_grad()",
            ),
            confidence="certain" if fewest >= SURE else "likely",
        )
    ]
