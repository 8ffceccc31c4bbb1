"""A device that runs out of work because its host launches kernels more slowly than the device runs them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import Lost, costs, lost
from shardtoll.analyzers.findings.stragglers.late_bills import bills
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.analyzers.shared import serving_remedies
from shardtoll.analyzers.shared.remedy_code import quoted
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Figure, Finding, Remedy, Where
from shardtoll.ledger.words.human import ranks

LEAST_SHARE: Final = 0.1
"""Share of the step from which waiting for launches is worth a finding: sound steps lose a few percent."""

WARNING_SHARE: Final = 0.2
LEAST_GAPS: Final = 20
"""Gaps per step. A few gaps have each a cause of their own, and no faster launching closes them."""

IN_ONE_PHASE: Final = 0.6
"""Part of the waiting from which its phase is named, and the remedy is that of the phase."""

COUNTERFACTUAL: Final = "the same step with every kernel launched before the device needs it"
TEXT: Final = (
    "Replay the step as CUDA graphs by torch.compile: one launch then starts many kernels. It does that in "
    "the mode `reduce-overhead`. If shapes change from step to step, launch fewer and larger kernels: a "
    "larger batch per rank, `fused=True` in the optimizer. Record once more without Python stacks first: "
    "recording them slows the host."
)
CODE: Final = f"model = torch.compile(model, mode={quoted('reduce-overhead')})"
OPTIMIZER_TEXT: Final = (
    "Update all parameters in a few kernels: `fused=True` in the optimizer. An optimizer of your own can use "
    "the `torch._foreach` operations, or run under `torch.compile`. Record once more without Python stacks "
    "first: recording them slows the host."
)
OPTIMIZER_CODE: Final = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"


def find(context: Context) -> list[Finding]:
    """Return at most one finding, of all ranks that wait for launches.

    Toll: idle time per step in short gaps before work that was launched late, on the worst rank. Time with
    another reason (a batch, a wait of the host, a pipeline's schedule) is in no such gap. Ranks that are
    billed as stragglers are left out: what makes them late is said there. So are those whose host a survey
    slowed in all steps that tell their idle time.
    """
    late = {bill.rank for bill in bills(context)[1] if bill.rank is not None}
    return [
        _finding(context, stall)
        for stall in lost(context, "launch", without=late | context.slowed_ranks)
        if stall.share >= LEAST_SHARE and (stall.line.figures["count"] or 0) >= LEAST_GAPS
    ]


def _finding(context: Context, stall: Lost) -> Finding:
    gaps = stall.line.figures["count"] or 0
    phase = _phase(stall)
    where = "" if phase is None else f"mostly in {phase}, "
    share = round(stall.share, 4)
    others = _queued_ns(context, (stall.worst,)) // max(1, len(told_steps(context)))
    return Finding(
        kind="launch-bound",
        severity="warning" if stall.share >= WARNING_SHARE else "info",
        title=f"the device waits for kernel launches for {costs(stall)}, in {gaps:,} short gaps per step, "
        f"{where}on {ranks(stall.line.ranks)}",
        toll_ns=stall.lost_ns,
        floor_ns=None,
        saving_ns=stall.lost_ns,
        bytes=None,
        count=gaps,
        ranks=stall.line.ranks,
        where=Where(phase=phase),
        evidence=(
            Evidence("worst rank", stall.worst),
            Evidence("idle before late launches there, per step", stall.lost_ns, "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("short gaps, per step", gaps),
            Evidence("mean gap", stall.lost_ns // gaps, "ns"),
            Evidence("other idle time without a reason on record, per step", others, "ns"),
        ),
        remedy=_remedy(context, phase),
        confidence="likely",
        figures=(
            Figure("lost_ns", stall.lost_ns, "ns"),
            Figure("share_of_step", share, "share"),
            Figure("gaps", gaps, "count"),
        ),
        rows=stall.spoken,
    )


def _phase(stall: Lost) -> str | None:
    """Return the phase with at least `IN_ONE_PHASE` of the waiting; None if no phase has so much."""
    by_phase = stall.rows.groupby("phase")["lost_ns"].sum()
    phase = str(by_phase.idxmax())
    enough = float(by_phase[phase]) >= IN_ONE_PHASE * float(by_phase.sum())
    return phase if enough and phase != "other" else None


def _queued_ns(context: Context, of_ranks: Collection[int]) -> int:
    """Return the idle time with neither a late launch nor another reason, over the steps that tell it."""
    stalls = context.stalls_in_steps
    mine = stalls["step"].isin(told_steps(context)) & stalls["rank"].isin(of_ranks)
    return int(keep(stalls, mine & (stalls["kind"] == "host"))["lost_ns"].sum())


def _remedy(context: Context, phase: str | None) -> Remedy:
    if context.serves:
        return Remedy(serving_remedies.LAUNCHES.text, serving_remedies.LAUNCHES.code, COUNTERFACTUAL)
    if phase == "optimizer":
        return Remedy(OPTIMIZER_TEXT, OPTIMIZER_CODE, COUNTERFACTUAL)
    return Remedy(TEXT, CODE, COUNTERFACTUAL)
