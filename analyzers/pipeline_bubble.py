"""Stages that idle or wait for each other inside a pipeline's schedule, against the bubble it must have."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.memo import once
from shardtoll.analyzers.peers import PEER_OPS
from shardtoll.analyzers.stalled import Lost, costs, finding, lost
from shardtoll.analyzers.tally import keep
from shardtoll.analyzers.words import percent, ranks
from shardtoll.ledger import Evidence, Finding, Remedy, Where
from shardtoll.ledger.pipeline import PIPELINE_DIMS, one_way

LEAST_EXCESS: Final = 0.1
"""Share of the step by which the bubble must exceed its ideal: messages and their launches take some."""

MOST_IDEAL: Final = 0.5
"""Share of the step from which the ideal bubble itself is worth a finding: more micro-batches would do."""


@once
def message_waits(context: Context) -> pd.DataFrame:
    """Return the exposed waiting in sends and receives between pipeline stages, as rows of stalls.

    Of the steps `alike`: in others stages wait for capture too.

    A wait is what is exposed beyond the transfer, once both ends of a message are known. A group is a
    pipeline when its mesh dimension says so or, where it has none, when messages flow one way in forward
    and the other way in backward; a ring's flow both ways. The index is that of the collectives' frame.
    """
    frame = context.in_alike
    fit = frame["op"].isin(PEER_OPS) & frame["wait_ns"].notna() & frame["exposed_ns"].notna()
    frame = keep(frame, fit & frame["root"].notna() & frame["group_id"].notna())
    named = frame["mesh_dim"].isin(PIPELINE_DIMS).to_numpy(dtype=bool, na_value=False)
    frame = keep(frame, named | (frame["mesh_dim"].isna().to_numpy(dtype=bool) & one_way(frame)))
    exposed = frame["exposed_ns"].to_numpy(dtype=np.int64)
    transfer = frame["transfer_ns"].to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "step": frame["step"],
            "rank": frame["rank"],
            "kind": "bubble",
            "name": "waiting in " + frame["op"],
            "phase": frame["phase"],
            "count": pd.array(np.ones(len(frame), dtype=np.int64), dtype="Int64"),
            "total_ns": frame["duration_ns"],
            "lost_ns": pd.array(np.maximum(exposed - transfer, 0), dtype="Int64"),
            "module": frame["module"],
            "source": frame["source"],
            "bytes": frame["message_bytes"],
        },
        index=frame.index,
    )
    return keep(rows, rows["lost_ns"] > 0)


def lines(context: Context) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline in order of stages: by the mesh, else by where messages flow."""
    groups = context.ledger.groups
    found = [group.ranks for group in groups if group.mesh_dim in PIPELINE_DIMS and group.size > 1]
    if not found:
        waits = message_waits(context)
        numbers = context.collectives.loc[waits.index, "group_id"].dropna().unique()
        found = [context.matches.members[int(number)] for number in numbers]
    return sorted(set(found))


def shape(context: Context) -> tuple[int, int] | None:
    """Return stages and micro-batches, as far as groups and sends tell; None where they do not.

    The first stage sends each micro-batch forward once, the last one's gradients once; stages between
    send both. So the fewest sends of a rank per step are the micro-batches, once an end is seen.
    """
    pipes = lines(context)
    if not pipes or len({len(line) for line in pipes}) > 1:
        return None
    frame = context.in_steps
    within = frame["mesh_dim"].isin(PIPELINE_DIMS) | frame["mesh_dim"].isna()
    ends = {rank for line in pipes for rank in (line[0], line[-1])}
    sends = keep(frame, (frame["op"] == "send") & within & frame["rank"].isin(sorted(ends)))
    per_rank = sends.groupby("rank").size()
    if per_rank.empty:
        return None
    batches = round(float(np.median(per_rank.to_numpy())) / len(context.steps))
    return (len(pipes[0]), batches) if batches else None


def least_share(context: Context, one: Lost) -> float:
    """Return the bubble as a share of the step, in the step where it is least.

    A schedule's bubble is in every step; what is in some of them alone is other load on the machine.
    """
    told = one.rows["step"].unique()
    steps = keep(context.step_rows, context.step_rows["step"].isin(told))
    own_work = (steps["duration_ns"] - steps["capture_ns"]).groupby(steps["step"]).max()
    most = one.rows.groupby(["step", "rank"])["lost_ns"].sum().groupby(level="step").max()
    shares = most.astype("float64") / own_work.astype("float64")
    return float(shares.min()) if shares.notna().any() else one.share


def place(context: Context, rank: int) -> Where:
    """Return where a rank runs its schedule: the line at which most of its messages are sent."""
    frame = context.in_alike
    sent = keep(frame, (frame["rank"] == rank) & frame["op"].isin(PEER_OPS))
    within = keep(sent, sent["mesh_dim"].isin(PIPELINE_DIMS) | sent["mesh_dim"].isna())
    if within.empty:
        return Where()
    line, dim, group = (within[name].mode(dropna=True) for name in ("source", "mesh_dim", "group"))
    return Where(*(None,) * 4, *(None if one.empty else str(one.iloc[0]) for one in (line, group, dim)))


def find(context: Context) -> list[Finding]:
    """Return at most one finding.

    Toll: time inside the schedule in which a stage was idle, or waited in a send or receive for the other
    end, per step on the worst rank; `exposed-communication` leaves that waiting out. Where stages p and
    micro-batches m are known, the saving is what exceeds the ideal bubble, a share of (p - 1) / (m + p - 1)
    of the step. In an audit a bubble that in some step is hardly more than its ideal is the schedule's own,
    and no finding unless it is most of the step; a trace's is billed as the idle time that it is.
    """
    findings = []
    for one in lost(context, "bubble", besides=message_waits(context)):
        known, saving, against = shape(context), None, ""
        evidence: tuple[Evidence, ...] = ()
        if known is not None and context.step_ns:
            stages, batches = known
            ideal = (stages - 1) / (batches + stages - 1)
            saving = max(0, round(one.lost_ns - ideal * context.step_ns))
            live = context.ledger.run.source == "live"
            excess = round(least_share(context, one) - ideal, 6)
            if live and excess < LEAST_EXCESS and ideal < MOST_IDEAL:
                continue
            against = f"; {stages} stages and {batches} micro-batches need {percent(ideal)}"
            evidence = (
                Evidence("stages", stages),
                Evidence("micro-batches", batches),
                Evidence("bubble, share of the step", round(one.share, 4)),
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
                where=place(context, one.worst),
                saving_ns=saving,
                evidence=evidence,
            )
        )
    return findings
