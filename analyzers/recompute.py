"""Compute done a second time, so that activations need not be kept."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import costs, finding, lost
from shardtoll.analyzers.words import ranks
from shardtoll.ledger import Evidence, Finding, Remedy

MODULES_SHOWN: Final = 5


def find(context: Context) -> list[Finding]:
    """Return at most one finding. Toll: recomputing per step, on the worst rank.

    It buys memory, so no saving is claimed: whether the memory is there the record does not tell.
    """
    findings = []
    for one in lost(context, "recompute"):
        known = one.rows[one.rows["module"].notna()]
        by_module = known.groupby("module")["lost_ns"].sum().sort_values(ascending=False, kind="stable")
        findings.append(
            finding(
                one,
                kind="recompute",
                title=f"activation checkpointing computes again for {costs(one)}, on {ranks(one.line.ranks)}",
                remedy=Remedy(
                    "If memory is left, checkpoint fewer blocks, or keep the outputs of matmuls and "
                    "attention "
                    "and recompute the cheap rest.",
                    "checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(\n"
                    "    create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]))",
                ),
                evidence=tuple(
                    Evidence(f"in {module}, all ranks and steps", int(value), "ns")
                    for module, value in list(by_module.items())[:MODULES_SHOWN]
                ),
            )
        )
    return findings
