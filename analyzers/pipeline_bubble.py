"""The device idle inside a pipeline's schedule, against the bubble that such a schedule must have."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import costs, finding, lost
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import percent, ranks
from shardtoll.ledger import Evidence, Finding, Remedy

PIPELINE_DIMS: Final = ("pp", "pipe", "pipeline", "stage")


def shape(context: Context) -> tuple[int, int] | None:
    """Return stages and micro-batches, as far as mesh and sends tell; None where they do not.

    The first stage sends each micro-batch forward once, the last one's gradients once; stages between
    send both. So the fewest sends of a rank per step are the micro-batches, once an end is seen.
    """
    dims = [dim for dim in PIPELINE_DIMS if context.ledger.run.mesh.get(dim, 1) > 1]
    if not dims:
        return None
    frame = context.in_steps
    sends = keep(frame, (frame["op"] == "send") & (frame["mesh_dim"] == dims[0]))
    pipes = [group.ranks for group in context.ledger.groups if group.mesh_dim == dims[0]]
    ends = {rank for pipe in pipes for rank in (pipe[0], pipe[-1])}
    per_rank = keep(sends, sends["rank"].isin(sorted(ends))).groupby("rank").size()
    if per_rank.empty:
        return None
    batches = round(float(np.median(per_rank.to_numpy())) / len(context.steps))
    return (context.ledger.run.mesh[dims[0]], batches) if batches else None


def find(context: Context) -> list[Finding]:
    """Return at most one finding.

    Toll: idle time inside the schedule per step on the worst rank. Where stages p and micro-batches m are
    known, the saving is what exceeds the ideal bubble, a share of (p - 1) / (m + p - 1) of the step.
    """
    findings = []
    for one in lost(context, "bubble"):
        known, saving, against = shape(context), None, ""
        evidence: tuple[Evidence, ...] = ()
        if known is not None and context.step_ns:
            stages, batches = known
            ideal = (stages - 1) / (batches + stages - 1)
            saving = max(0, round(one.lost_ns - ideal * context.step_ns))
            against = f"; {stages} stages and {batches} micro-batches need {percent(ideal)}"
            evidence = (
                Evidence("stages", stages),
                Evidence("micro-batches", batches),
                Evidence("ideal bubble, share of the step", round(ideal, 4)),
            )
        findings.append(
            finding(
                one,
                "pipeline-bubble",
                f"pipeline stages stand idle for {costs(one)}{against}, on {ranks(one.line.ranks)}",
                Remedy(
                    "More micro-batches shrink the bubble; interleaved or zero-bubble schedules fill it. "
                    "What "
                    "is above the ideal comes from stages of unequal length: move layers between them.",
                    "schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stages))",
                    None if saving is None else "the same schedule with no more than its ideal bubble",
                ),
                saving_ns=saving,
                evidence=evidence,
            )
        )
    return findings
