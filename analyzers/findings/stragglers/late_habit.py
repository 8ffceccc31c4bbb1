"""The finding of one rank that is late by habit."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.findings.stragglers.late_asleep import more_asleep_ns
from shardtoll.analyzers.findings.stragglers.late_cause import cause_of, uncertain
from shardtoll.analyzers.findings.stragglers.late_chance import (
    CPU_WARNING_SHARE,
    alarming,
    by_chance,
    confidence_in,
    noisy,
)
from shardtoll.analyzers.findings.stragglers.lateness import host_computes, late_to
from shardtoll.analyzers.findings.stragglers.own_steps import SlowSteps, slow_steps
from shardtoll.analyzers.shared.tally import Line, keep
from shardtoll.ledger import Evidence, Finding, Remedy, Rows
from shardtoll.ledger.words.human import duration, others, percent, ranks, runs
from shardtoll.ledger.words.human import plural as times

EVEN: Final = 0.8
"""If every rank waits at least this share of the longest wait, all of them wait."""

HEDGE: Final = "or it only began recording later, as most of the waiting is in the first collective on record"


def habit_finding(context: Context, rank: int, rows: pd.DataFrame, late: pd.DataFrame, line: Line) -> Finding:
    """Return the finding; `rows` are all waits, `late` those for the rank, `line` the figures of these."""
    once, all_once = late_to(late), late_to(rows)
    toll, saving = line.figures["waited_ns"], line.figures["saved_ns"]
    if toll is None or saving is None:
        raise AssertionError("waits of unknown length were left out")
    who = tuple(sorted({int(r) for r in late.loc[late["waited_ns"] > 0, "rank"] if r != rank}))
    cause = cause_of(context, late)
    bound = bool(late["at_least"].any())
    least, most = waiting(context, late, rank)
    waiting_ranks = f"{others(context.ledger.run.world_size - 1, 'wait')} "
    waiting_ranks += "" if least >= EVEN * most else "up to "
    counted = f"{len(once)} of {times(len(all_once), 'collective')}"
    hedge = f", {HEDGE}" if uncertain(context, late) else ""
    share = context.share(toll, context.timed) or 0.0
    chance = by_chance(context, rows, rank)
    slow = slow_steps(context, rank) if chance is None and noisy(context, rows, rank) else None
    clause = cause.clause if slow is None else _in_some(context, slow)
    dear = alarming(context, toll, rows, rank)
    shared = _asleep(context, rank) if crowded(context) is not None else ()
    return Finding(
        kind="straggler",
        severity="warning" if dear else "info",
        title=f"rank {rank} is last{' of the ranks seen' if bound else ''} in {counted}, and {waiting_ranks}"
        f"{'at least ' if bound else ''}{duration(toll)} per step ({percent(share)}) for it"
        f"{'' if clause is None else f': {clause}'}{hedge}",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=min(toll, saving),
        bytes=None,
        count=max(1, round(len(once) / len(context.alike))),
        ranks=(rank,),
        rows=Rows.of(collectives=late.index),
        where=cause.where,
        evidence=(
            Evidence("last in", counted),
            Evidence("after the second-to-last rank, median collective", int(once["late_ns"].median()), "ns"),
            Evidence("after the median rank, median collective", int(once["behind_ns"].median()), "ns"),
            Evidence("longest exposed wait for it in one collective", int(once["waited_ns"].max()), "ns"),
            Evidence("ranks that wait", ranks(who) if who else None),
            Evidence("rank that waits least, per step", round(least), "ns"),
            Evidence("rank that waits most, per step", round(most), "ns"),
            *(
                (Evidence("waits are lower bounds", "ranks that were not seen may have come later still"),)
                if bound
                else ()
            ),
            *(() if slow is None else (Evidence("steps in which it is slow", runs(slow.steps)),)),
            *cause.parts,
            *shared,
            *(() if dear else (_why_info(chance),)),
        ),
        remedy=Remedy(
            *late_remedies.remedy(
                cause.part,
                cause.where.phase,
                rank,
                on_cpu=host_computes(context),
                serves=context.serves,
                device=context.ledger.run.device,
                lines=cause.lines,
            ),
            counterfactual="the same step with this rank arriving with the second-to-last one",
            measures=late_remedies.measures(cause.part),
        ),
        confidence="possible"
        if hedge or bound or chance or shared
        else confidence_in(context, late, len(once)),
        figures=(
            *late_remedies.launch_figures(
                cause.part, cause.more_ns.get(cause.part or "", 0), on_cpu=host_computes(context)
            ),
            *late_remedies.idle_figures(cause.more_ns),
        ),
    )


def _asleep(context: Context, rank: int) -> tuple[Evidence, ...]:
    """Return why a rank is named although ranks share cores."""
    more = more_asleep_ns(context, rank)
    if more is None:
        return ()
    return (Evidence("its thread slept longer than its peers', per step, median", int(more.median()), "ns"),)


def waiting(context: Context, rows: pd.DataFrame, rank: int) -> tuple[float, float]:
    """Return the least and the most that ranks wait for a late one, per step of those that the bars show."""
    of_others = context.shown(keep(rows, rows["rank"] != rank))
    each = of_others.groupby("rank")["waited_ns"].sum() / max(1, len(context.timed))
    return (0.0, 0.0) if each.empty else (float(each.min()), float(each.max()))


def _in_some(context: Context, slow: SlowSteps) -> str:
    words = late_remedies.words(slow.part, on_cpu=host_computes(context))
    return (
        f"in {len(slow.steps)} of {times(slow.of, 'step')} it spends {duration(slow.more_ns)} longer {words} "
        "than in its other steps"
    )


def _why_info(chance: str | None) -> Evidence:
    if chance is not None:
        return Evidence("why it is only information", f"it may be chance: {chance}")
    return Evidence(
        "why it is only information",
        f"on CPUs ranks share cores and delay each other; from {percent(CPU_WARNING_SHARE)} of the step "
        "on it is a warning",
    )
