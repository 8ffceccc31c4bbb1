"""Stages that idle or wait for each other inside a pipeline's schedule, against the bubble it must have."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.origin import caused_ns
from shardtoll.analyzers.findings.stages import pipeline_imbalance
from shardtoll.analyzers.findings.stalls.stalled import Lost, costs, finding, lost, lost_rows
from shardtoll.analyzers.pipelines.pipeline_shape import Shape, shape
from shardtoll.analyzers.pipelines.stage_lines import lines
from shardtoll.analyzers.pipelines.stage_messages import messages, place, set_up_steps
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.answers.pipeline import Pipelines, Stage
from shardtoll.ledger.words.human import duration, percent, ranks

LEAST_EXCESS: Final = 0.1
"""Share of the step by which the bubble must exceed its ideal: messages and their launches take some."""

MOST_IDEAL: Final = 0.5
"""Share of the step from which the ideal bubble itself is worth a finding: more micro-batches would do."""


_WAITS: Final = ("waiting in recv", "waiting in send")


@once
def message_waits(context: Context) -> pd.DataFrame:
    """Return the exposed waiting in sends and receives between pipeline stages, as rows of stalls.

    Only the steps `alike`: in others stages wait for capture too. The index is that of the collectives'
    frame. Without what `straggler` bills: waiting for a rank that is slower than the same stage of other
    replicas.
    """
    frame = messages(context)
    frame = keep(frame, frame["waited_ns"].notna() & frame["step"].isin(context.alike))
    caused = caused_ns(context).reindex(frame.index, fill_value=0).to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "step": frame["step"],
            "rank": frame["rank"],
            "kind": "bubble",
            "name": "waiting in " + frame["op"],
            "phase": frame["phase"],
            "count": pd.array(np.ones(len(frame), dtype=np.int64), dtype="Int64"),
            "total_ns": frame["duration_ns"],
            "lost_ns": frame["waited_ns"] - caused,
            "module": frame["module"],
            "source": frame["source"],
            "bytes": frame["message_bytes"],
        },
        index=frame.index,
    )
    return keep(rows, rows["lost_ns"] > 0)


def pipelines(context: Context) -> Pipelines | None:
    """Return the pipelines with what each stage loses, as the report carries them; None without any.

    The lost time is what `find` bills, before it is held against an ideal bubble.
    """
    rows = messages(context)
    if rows.empty:
        return None
    lost, steps = lost_rows(context, "bubble", message_waits(context))
    waits = lost["name"].isin(_WAITS)
    sums = lost.groupby(["rank", lost["name"].where(waits, "idle")])["lost_ns"].sum().unstack(fill_value=0)
    sums = sums.reindex(index=rows["rank"].unique(), columns=[*_WAITS, "idle"], fill_value=0).sort_index()
    lasted = context.lasted_ns(steps)
    form = shape(context)
    return Pipelines(
        lines=tuple(lines(context)),
        group_ids=tuple(sorted(int(number) for number in rows["group_id"].unique())),
        micro_batches=None if form is None else form.micro_batches,
        steps=steps,
        step_ns=None if lasted is None else round(lasted),
        stages=tuple(
            Stage(int(rank), *(round(int(ns) / len(steps)) for ns in (sum(parts), *parts)))
            for rank, *parts in sums.itertuples(name=None)
        ),
    )


def least_share(context: Context, stall: Lost) -> float:
    """Return the bubble as a share of the step, in the step where it is least.

    A schedule's bubble is in every step; what is in some of them alone is other load on the machine. Steps in
    which a schedule sets itself up are longer than others, and count only if there are no others.
    """
    its_steps = np.setdiff1d(stall.rows["step"].unique(), set_up_steps(context))
    if not len(its_steps):
        its_steps = stall.rows["step"].unique()
    steps = keep(context.step_rows, context.step_rows["step"].isin(its_steps))
    own_work = (steps["duration_ns"] - steps["capture_ns"]).groupby(steps["step"]).max()
    rows = keep(stall.rows, stall.rows["step"].isin(its_steps))
    most = rows.groupby(["step", "rank"])["lost_ns"].sum().groupby(level="step").max()
    shares = most.astype("float64") / own_work.astype("float64")
    return float(shares.min()) if shares.notna().any() else stall.share


def _remedy(form: Shape | None, saving: int | None) -> Remedy:
    """Return what shrinks the bubble of a schedule of this shape."""
    if form is None or form.stages_per_rank is None or form.micro_batches is None:
        advice = (
            "Use more micro-batches: they shrink the bubble. So does interleaving, if ranks have one stage "
            "each. "
        )
        code = "schedule = Schedule1F1B(stage, n_microbatches=4 * stages)"
    elif form.stages_per_rank == 1:
        advice = (
            "Use more micro-batches: they shrink the bubble. Interleaved or zero-bubble schedules fill it. "
        )
        code = "schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stages))"
    else:
        advice = "Use more micro-batches: they shrink the bubble. "
        code = f"schedule = type(schedule)(stages, n_microbatches={2 * form.micro_batches})"
    return Remedy(
        f"{advice}{_more(form, saving)}",
        code,
        None if saving is None else "the same schedule with no more than its ideal bubble",
    )


def _more(form: Shape | None, saving: int | None) -> str:
    """Return what else there is to know of a bubble of this shape with such a saving."""
    is_known = form is not None and form.stages_per_rank is not None and form.micro_batches is not None
    if saving is None and is_known:
        return "`shardtoll whatif` with `--micro-batches` predicts by how much."
    return "Time above the ideal comes from unequal stages: move layers between them."


def _beyond_imbalance(context: Context, stall: Lost) -> int:
    """Return what the worst rank loses beyond the waiting that `pipeline-imbalance` bills, per step.

    With every stage as long as the mean each rank but the slowest waits less by what that has beyond it.
    """
    imbalance = pipeline_imbalance.worst(context)
    each = stall.rows.groupby("rank")["lost_ns"].sum() / stall.steps
    if imbalance is None or each.empty:
        return stall.lost_ns
    waits = ~np.isin(each.index.to_numpy(), imbalance.slowest)
    left = each.to_numpy(dtype=np.float64) - np.where(waits, imbalance.excess_ns, 0.0)
    return min(stall.lost_ns, max(0, round(float(left.max()))))


def find(context: Context) -> list[Finding]:
    """Return at most one finding.

    Toll: time inside the schedule in which a stage was idle, or waited in a send or receive for the other
    end. It is per step on the worst rank, less what `pipeline-imbalance` bills; `exposed-communication`
    leaves that waiting out. If ranks p, stages a rank v and micro-batches m are known, the saving is what
    exceeds the ideal bubble. The ideal bubble is a share of (p - 1) / (v m + p - 1) of the step. The saving
    is None if nothing exceeds it. If a bubble in an audit is hardly more than its ideal in some step, it is
    the schedule's own. It is then no finding, unless it is most of the step. A trace's is billed as the idle
    time that it is.
    """
    findings = []
    waits = message_waits(context)
    for stall in lost(context, "bubble", besides=waits):
        form, saving, against = shape(context), None, ""
        toll = _beyond_imbalance(context, stall)
        evidence: tuple[Evidence, ...] = ()
        if form is not None and context.step_ns:
            ideal = form.ideal_share
            # At its ideal it shrinks with more micro-batches only, which a replay has to price.
            saving = max(0, round(toll - ideal * context.step_ns)) or None
            live = context.ledger.run.source == "live"
            excess = round(least_share(context, stall) - ideal, 6)
            if live and excess < LEAST_EXCESS and ideal < MOST_IDEAL:
                continue
            against = f"; {form.words} need {percent(ideal)}"
            evidence = (
                *form.evidence,
                Evidence("bubble, share of the step", round(stall.share, 4), "share"),
                Evidence("ideal bubble, share of the step", round(ideal, 4), "share"),
            )
        if toll < stall.lost_ns:
            against = f", {duration(stall.lost_ns - toll)} of it for the slowest stage{against}"
            billed = Evidence("of that billed as pipeline-imbalance, per step", stall.lost_ns - toll, "ns")
            evidence = (*evidence, billed)
        findings.append(
            finding(
                stall,
                "pipeline-bubble",
                f"pipeline stages stand idle for {costs(stall)}{against}, on {ranks(stall.line.ranks)}",
                _remedy(form, saving),
                where=place(context, stall.worst),
                toll_ns=toll,
                saving_ns=saving,
                evidence=evidence,
                rows=replace(
                    stall.spoken,
                    collectives=Rows.of(keep(waits, waits["rank"].isin(stall.line.ranks)).index).collectives,
                ),
            )
        )
    return findings
