"""The rank for which the others wait, and what it did when they had arrived."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.crowded import crowded
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.findings.habits import expert_imbalance
from shardtoll.analyzers.findings.waiting import late_remedies, origin_finding
from shardtoll.analyzers.findings.waiting.late_place import late_place
from shardtoll.analyzers.findings.waiting.lateness import (
    CAUSES,
    ROOTED,
    at_the_start,
    excess,
    host_computes,
    late_to,
    waits,
)
from shardtoll.analyzers.findings.waiting.origin import Origin, caused_ns, origins
from shardtoll.analyzers.findings.waiting.step_excess import step_excess, told_steps
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.placements import hidden
from shardtoll.analyzers.shared.tally import Line, keep, tally, text
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Rows, Severity, Where
from shardtoll.ledger.words.human import duration, percent, ranks, some_time
from shardtoll.ledger.words.human import plural as times

LEAST_SHARE: Final = 0.01
"""Share of the step that the waiting must cost."""

MOST_OF_IT: Final = 0.5
"""A rank is named when the others' waiting for it is at least this part of all waiting, and 1.5 times
what it would be if ranks took turns: of two ranks each is last half the time."""

FEW: Final = 3
"""Collectives below which being last may be chance."""

STEADY: Final = 0.8
"""Part of the steps in which the others must wait for the rank more than it and they for all others."""

FIRM: Final = 2.0
"""What they wait more for it, over how much that differs from step to step by chance: below it is noise."""

UNEXPLAINED_STEPS: Final = 8
"""On CPUs, steps from which a rank that is steadily last is so by habit, cause or none."""

CPU_WARNING_SHARE: Final = 0.2
"""On CPUs ranks share cores, so each delays the others: below that share of the step it is information."""

EVEN: Final = 0.8
"""Where each rank waits at least this part of what the one waits that waits most, all wait so long."""

HEDGE: Final = "or began recording later: most of the waiting is in the first collective on record"


def named(rows: pd.DataFrame) -> list[int]:
    """Return the ranks that are late by habit, not by turns; `rows` as `lateness.waits` gives them."""
    once = late_to(rows)
    once = keep(once, once["late_ns"] >= LEAST_LATE_NS)
    by_rank = once.groupby("late_rank")["waited_ns"].sum()
    if by_rank.sum() <= 0:
        return []
    ranks_there = max(2, len(rows["rank"].unique()))
    share = by_rank / by_rank.sum()
    return [int(rank) for rank in share.index[share >= max(MOST_OF_IT, 1.5 / ranks_there)]]


@dataclass(frozen=True, slots=True)
class Bill:
    """The waiting that one finding bills."""

    rank: int | None
    """The late rank; None where ranks take turns."""
    rows: pd.DataFrame
    line: Line
    origin: Origin | None = None
    """Where lateness travels from rank to rank: where it began, at `rank`."""


@once
def bills(context: Context) -> tuple[pd.DataFrame, list[Bill]]:
    """Return all waits, and those dear enough for a finding; each instant of waiting is in one of them.

    First come the ranks at which lateness begins, with all that they cause, in messages too; then who is last
    in what remains.
    """
    rows = waits(context)
    # `implicit-redistribute` bills its collectives whole, their waiting too.
    rows = _without_experts(context, keep(rows, ~hidden(rows)))
    if rows.empty or not context.step_ns:
        return rows, []
    dear = _of_origins(context)
    caused = caused_ns(context).reindex(rows.index, fill_value=0).to_numpy(dtype=np.int64)
    rows = rows.assign(waited_ns=np.maximum(rows["waited_ns"].to_numpy(dtype=np.int64) - caused, 0))
    rows = rows.assign(saved_ns=np.minimum(rows["waited_ns"], rows["late_ns"]), all=0)
    culprits = named(rows)
    of_culprits = rows["late_rank"].isin(culprits) & (rows["late_ns"] >= LEAST_LATE_NS)
    parts = [(rank, keep(rows, of_culprits & (rows["late_rank"] == rank))) for rank in culprits]
    for rank, part in (*parts, (None, keep(rows, ~of_culprits))):
        for line in tally(part, ("all",), ("waited_ns", "saved_ns"), context.alike).lines:
            if (context.share(line.figures["waited_ns"], context.alike) or 0.0) >= LEAST_SHARE:
                dear.append(Bill(rank, part, line))
    return rows, dear


def _without_experts(context: Context, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the waiting for the rank whose experts got most, which is billed apart."""
    return keep(rows, ~rows["match_id"].isin(expert_imbalance.billed_matches(context)))


def _of_origins(context: Context) -> list[Bill]:
    made = []
    for origin in origins(context):
        rows = context.in_alike.loc[origin.caused_ns.index]
        rows = keep(rows, ~hidden(rows))[["step", "rank", "op", "match_id"]]
        rows = rows.assign(waited_ns=origin.caused_ns.loc[rows.index], all=0)
        rows = _without_experts(context, rows)
        for line in tally(rows, ("all",), ("waited_ns",), context.alike).lines:
            if (context.share(line.figures["waited_ns"], context.alike) or 0.0) >= LEAST_SHARE:
                made.append(Bill(origin.rank, rows, line, origin))
    return made


def billed_ns(context: Context) -> pd.Series[Any]:
    """Return, by row of the collectives' frame, the exposed waiting that straggler findings bill."""
    parts = [bill.rows["waited_ns"] for bill in bills(context)[1]]
    billed: pd.Series[Any] = pd.concat(parts) if parts else pd.Series(dtype="int64")
    # A part of a wait may be an origin's, and the rest that of the rank that came last.
    return billed.groupby(level=0).sum()


def find(context: Context) -> list[Finding]:
    """Return one finding a rank that is late by habit, and one for waiting on ranks that take turns.

    Toll: exposed waiting per step on the rank that waits most; `exposed-communication` leaves it out. Steps
    that one rank surveyed and another watched are not looked at, where there are others: the wait is for
    capture there. The saving is against the late rank arriving with the one before it. Where ranks were not
    seen, waiting for the last of those seen is a lower bound, and is said to be one. Ranks that share CPU
    cores delay each other: then a notice says so, and there is no finding.
    """
    rows, dear = bills(context)
    if crowded(context) is not None:
        return []
    besides = any(bill.rank is not None for bill in dear)
    return [_finding(context, rows, bill, besides) for bill in dear]


def _finding(context: Context, rows: pd.DataFrame, bill: Bill, besides: bool) -> Finding:
    if bill.origin is not None:
        toll = bill.line.figures["waited_ns"] or 0
        severity: Severity = "warning" if _worth_a_warning(context, toll) else "info"
        return origin_finding.finding(context, bill.origin, bill.rows, bill.line, severity)
    if bill.rank is None:
        return _turns(context, bill.rows, bill.line, besides)
    return _one(context, bill.rank, rows, bill.rows, bill.line)


def _confidence(context: Context, rows: pd.DataFrame, count: int) -> Confidence:
    if count < FEW:
        return "possible"
    by_guess = bool(context.matches.rows["likely"].to_numpy(dtype=bool)[rows.index.to_numpy()].any())
    by_guess = by_guess or bool(rows["op"].isin(ROOTED).any())
    clock_off = any(clock.claimed for clock in context.clocks.clocks)
    return "likely" if by_guess or clock_off else "certain"


def noisy(context: Context, rows: pd.DataFrame, rank: int) -> str | None:
    """Return why a rank may be last by chance: it is not in every step, or by changing amounts; None else.

    Fewer than three steps do not tell.
    """
    if len(context.alike) < FEW:
        return None
    once = late_to(rows)
    sign = np.where(once["late_rank"] == rank, 1.0, -1.0)
    signed = pd.Series(sign * once["waited_ns"].to_numpy(dtype=np.float64)).groupby(once["step"].to_numpy())
    each = signed.sum().reindex(context.alike, fill_value=0.0)
    more = int((each > 0).sum())
    if more < STEADY * len(each):
        return f"in {more} of {times(len(each), 'step')} only is it waited for more than others"
    if float(each.mean()) < FIRM * float(each.std()) / np.sqrt(len(each)):
        return "the waiting differs from step to step by more than its mean tells"
    return None


def alarming(context: Context, toll_ns: int, rows: pd.DataFrame, rank: int) -> bool:
    """Whether a late rank is worth a warning: it costs enough on what it runs, and not by chance."""
    return _worth_a_warning(context, toll_ns) and by_chance(context, rows, rank) is None


def _worth_a_warning(context: Context, toll_ns: int) -> bool:
    return not context.on_cpu or (context.share(toll_ns, context.alike) or 0.0) >= CPU_WARNING_SHARE


def by_chance(context: Context, rows: pd.DataFrame, rank: int) -> str | None:
    """Return why being last may be noise; None where it is habit.

    On CPUs ranks delay each other by turns, so that there a few steps tell only with a cause.
    """
    late = keep(rows, (rows["late_rank"] == rank) & (rows["late_ns"] >= LEAST_LATE_NS))
    why = noisy(context, rows, rank)
    few = context.on_cpu and len(context.alike) < UNEXPLAINED_STEPS
    if why is None and few and _cause(context, late).part is None:
        return "on CPUs ranks delay each other, and nothing that this rank did took longer"
    return why


def waiting(rows: pd.DataFrame, rank: int, steps: int) -> tuple[float, float]:
    """Return the least and the most that ranks wait for a late one, per step."""
    each = keep(rows, rows["rank"] != rank).groupby("rank")["waited_ns"].sum() / steps
    return (0.0, 0.0) if each.empty else (float(each.min()), float(each.max()))


def _one(context: Context, rank: int, rows: pd.DataFrame, late: pd.DataFrame, line: Line) -> Finding:
    once, all_once = late_to(late), late_to(rows)
    toll, saving = line.figures["waited_ns"], line.figures["saved_ns"]
    if toll is None or saving is None:
        raise AssertionError("waits of unknown length were left out")
    who = tuple(sorted({int(r) for r in late.loc[late["rank"] != rank, "rank"]}))
    cause = _cause(context, late)
    bound = bool(late["at_least"].any())
    least, most = waiting(late, rank, len(context.alike))
    others = "the others wait " if least >= EVEN * most else "others wait up to "
    counted = f"{len(once)} of {times(len(all_once), 'collective')}"
    hedge = f", {HEDGE}" if uncertain(context, late) else ""
    share = context.share(toll, context.alike) or 0.0
    chance = by_chance(context, rows, rank)
    dear = alarming(context, toll, rows, rank)
    return Finding(
        kind="straggler",
        severity="warning" if dear else "info",
        title=f"rank {rank} is last{' of the ranks seen' if bound else ''} in {counted}, and {others}"
        f"{'at least ' if bound else ''}{duration(toll)} a step ({percent(share)}) for it"
        f"{'' if cause.clause is None else f': {cause.clause}'}{hedge}",
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
            Evidence("arrives after the rank before it, median", int(once["late_ns"].median()), "ns"),
            Evidence("arrives after the median rank, median", int(once["behind_ns"].median()), "ns"),
            Evidence("longest exposed wait for it", int(once["waited_ns"].max()), "ns"),
            Evidence("ranks that wait", ranks(who) if who else None),
            Evidence("the one that waits least, a step", round(least), "ns"),
            Evidence("the one that waits most, a step", round(most), "ns"),
            *(
                (Evidence("waits are lower bounds", "ranks that were not seen may have come later still"),)
                if bound
                else ()
            ),
            *cause.parts,
            *(() if dear else (_why_info(chance),)),
        ),
        remedy=Remedy(
            *late_remedies.remedy(cause.part, cause.where.phase, rank, on_cpu=host_computes(context)),
            counterfactual="the same step with this rank arriving with the one before it",
        ),
        confidence="possible" if hedge or bound or chance else _confidence(context, late, len(once)),
    )


def _why_info(chance: str | None) -> Evidence:
    if chance is not None:
        return Evidence("why it is only information", f"it may be chance: {chance}")
    return Evidence(
        "why it is only information",
        f"on CPUs ranks share cores and delay each other; from {percent(CPU_WARNING_SHARE)} of the step "
        "on it is a warning",
    )


def uncertain(context: Context, late: pd.DataFrame) -> bool:
    """Whether the waiting may only show that ranks began to record at different moments."""
    return at_the_start(late) and _cause(context, late).part in (None, "began_ns")


@dataclass(frozen=True, slots=True)
class Cause:
    """What a late rank did longer than the others."""

    part: str | None = None
    """One of `lateness.CAUSES`; None where nothing tells."""
    parts: tuple[Evidence, ...] = ()
    where: Where = field(default_factory=Where)
    clause: str | None = None
    """As it stands in a sentence."""


def _cause(context: Context, late: pd.DataFrame) -> Cause:
    """Return what the late rank did longer than the others."""
    table = excess(context, late)
    # Whole steps come first: lead-ups of collectives behind compute mislead (see step_excess).
    sums = step_excess(context, late)
    if not sums and not table.empty:
        steps = len(told_steps(context))
        sums = {name: float(table[name].sum()) / steps for name in CAUSES}
    order = sorted(sums, key=lambda name: -sums[name])
    words = {name: late_remedies.words(name, on_cpu=host_computes(context)) for name in order}
    parts = tuple(
        Evidence(f"longer {words[name]}, a step", round(sums[name]), "ns") for name in order if sums[name] > 0
    )
    if not parts:
        return Cause()
    first = order[0]
    clause = f"it spends {duration(sums[first])} longer {words[first]} than the others"
    if first == "began_ns":
        clause = f"it begins its step {duration(sums[first])} after the median of the others"
    if table.empty and first in ("compute_ns", "host_ns"):
        where_late = late_place(context, late, first)
        if where_late is not None:
            parts += (Evidence("longest of it in one place, a step", where_late.longer_ns, "ns"),)
            return Cause(first, parts, where_late.where, f"{clause}, most {where_late.clause}")
    if first != "compute_ns" or table.empty:
        return Cause(first, parts, clause=clause)
    longest = int(np.argmax(table["compute_ns"].to_numpy(dtype=np.float64)))
    top = table.iloc[longest][["phase", "module", "op"]]
    phase, module, kernel = (text(value) for value in top)
    if phase is not None:
        clause += f", most in {phase}" + (f" of {module}" if module else "")
    if kernel is not None:
        parts += (Evidence("kernel with the most time there", kernel),)
    return Cause(first, parts, Where(phase=phase, module=module, op=kernel), clause)


def _which(context: Context, count: int, besides: bool) -> str:
    slow = [origin.rank for origin in origins(context)]
    if slow:
        verb = "causes" if len(slow) == 1 else "cause"
        return f"{times(count, 'collective')} beyond what {ranks(slow)} {verb}"
    return times(count, "other collective" if besides else "collective")


def _turns(context: Context, rest: pd.DataFrame, line: Line, besides: bool) -> Finding:
    once = late_to(rest)
    toll = line.figures["waited_ns"]
    bound = bool(rest["at_least"].any())
    who = tuple(sorted({int(rank) for rank in once["late_rank"]}))
    last = once["late_rank"].value_counts()
    return Finding(
        kind="straggler",
        severity="info",
        title=f"ranks wait {'at least ' if bound else ''}{some_time(toll)} a step "
        f"({percent(context.share(toll, context.alike) or 0.0)}) for late ones in "
        f"{_which(context, len(once), besides)}, and no single rank is the cause",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=max(1, round(len(once) / len(context.alike))),
        ranks=who,
        rows=Rows.of(collectives=rest.index),
        evidence=(
            Evidence("collectives", len(once)),
            Evidence("ranks that were last", len(who)),
            Evidence("most often last", f"rank {last.index[0]}: {last.iloc[0]} of {len(once)}"),
            Evidence("arrives after the rank before it, median", int(once["late_ns"].median()), "ns"),
        ),
        remedy=Remedy(
            "Ranks take turns in being late: look for what differs from batch to batch (sequence lengths, "
            "experts' loads) and for noise on the hosts (other processes, garbage collection, checkpoints).",
            "print(step, dist.get_rank(), [tuple(x.shape) for x in batch])  # what differs by rank\n"
            "gc.disable()  # and gc.collect() on all ranks in the same step, every few hundred",
        ),
        confidence="possible" if bound else _confidence(context, rest, len(once)),
    )
