"""Compute done a second time, so that activations need not be kept."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import costs, finding, lost
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import ranks

MODULES_SHOWN: Final = 5


def _recorded(context: Context) -> pd.DataFrame | None:
    """Return the operators that live records show inside recomputation, with the stalls' columns.

    None if operators have no times, or a trace shows more.
    """
    if (context.stalls["kind"] == "recompute").any():
        return None
    rows = context.priced_computes
    rows = keep(rows, (rows["phase"] == "recompute") & rows["duration_ns"].notna())
    if rows.empty:
        return None
    spent = rows["duration_ns"].astype("int64")
    shown = {name: rows[name] for name in ("step", "rank", "phase", "module", "source")}
    shown["name"] = rows["op"]
    computes = pd.DataFrame(
        {**shown, "kind": "recompute", "lost_ns": spent, "total_ns": spent, "count": 1, "bytes": pd.NA}
    )
    as_stalls: pd.DataFrame = computes.reindex(columns=list(context.stalls.columns)).astype(
        context.stalls.dtypes.to_dict()
    )
    return as_stalls


def find(context: Context) -> list[Finding]:
    """Return at most one finding. Toll: recomputing per step, on the worst rank.

    It buys memory, so no saving is claimed: whether the memory is there the record does not tell.
    """
    findings = []
    recorded = _recorded(context)
    again = context.computes_in_steps
    again = keep(again, again["phase"] == "recompute")
    for stall in lost(context, "recompute", besides=recorded, besides_in=context.surveyed):
        of_line = keep(again, again["rank"].isin(stall.line.ranks))
        named = stall.rows[stall.rows["module"].notna()]
        by_module = named.groupby("module")["lost_ns"].sum().sort_values(ascending=False, kind="stable")
        findings.append(
            finding(
                stall,
                kind="recompute",
                title=f"activation checkpointing computes again for {costs(stall)}, "
                f"on {ranks(stall.line.ranks)}",
                remedy=Remedy(
                    "Checkpoint fewer blocks if memory is left. Or keep the outputs of matmuls and "
                    "attention, and recompute the cheap rest.",
                    "checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(\n"
                    "    create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]))",
                ),
                rows=None if of_line.empty else Rows.of(computes=of_line.index),
                evidence=tuple(
                    Evidence(f"in {module}, all ranks and steps", int(value), "ns")
                    for module, value in list(by_module.items())[:MODULES_SHOWN]
                ),
            )
        )
    return findings
