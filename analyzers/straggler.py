"""The rank for which the others wait, and what it did when they had arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from shardtoll.analyzers import late_remedies
from shardtoll.analyzers.context import Context
from shardtoll.analyzers.lateness import CAUSES, LEAST_LATE_NS, excess, late_to, waits
from shardtoll.analyzers.step_excess import step_excess
from shardtoll.analyzers.tally import Line, keep, tally, text
from shardtoll.analyzers.words import duration, percent, ranks, times
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Where

LEAST_SHARE: Final = 0.01
"""Share of the step that the waiting must cost."""

MOST_OF_IT: Final = 0.5
"""A rank is named when the others' waiting for it is at least this part of all waiting, and 1.5 times
what it would be if ranks took turns: of two ranks each is last half the time."""

FEW: Final = 3
"""Collectives below which being last may be chance."""


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


def bills(context: Context) -> tuple[pd.DataFrame, list[Bill]]:
    """Return all waits, and those dear enough for a finding; each collective's waiting is in one of them."""
    rows = waits(context)
    if rows.empty or not context.step_ns:
        return rows, []
    rows = rows.assign(saved_ns=np.minimum(rows["waited_ns"], rows["late_ns"]), all=0)
    culprits = named(rows)
    own = rows["late_rank"].isin(culprits) & (rows["late_ns"] >= LEAST_LATE_NS)
    parts = [(rank, keep(rows, own & (rows["late_rank"] == rank))) for rank in culprits]
    found = []
    for rank, part in (*parts, (None, keep(rows, ~own))):
        for line in tally(part, ("all",), ("waited_ns", "saved_ns"), context.steps).lines:
            if (context.share(line.figures["waited_ns"]) or 0.0) >= LEAST_SHARE:
                found.append(Bill(rank, part, line))
    return rows, found


def billed_ns(context: Context) -> pd.Series[Any]:
    """Return, by row of the collectives' frame, the exposed waiting that straggler findings bill."""
    parts = [bill.rows["waited_ns"] for bill in bills(context)[1]]
    billed: pd.Series[Any] = pd.concat(parts) if parts else pd.Series(dtype="int64")
    return billed


def find(context: Context) -> list[Finding]:
    """Return one finding a rank that is late by habit, and one for waiting on ranks that take turns.

    Toll: exposed waiting per step on the rank that waits most; `exposed-communication` leaves it out. The
    saving is against the late rank arriving with the one before it. Collectives without a known last
    arrival are left out.
    """
    rows, found = bills(context)
    besides = any(bill.rank is not None for bill in found)
    return [
        _turns(context, bill.rows, bill.line, besides)
        if bill.rank is None
        else _one(context, bill.rank, rows, bill.rows, bill.line)
        for bill in found
    ]


def _confidence(context: Context, rows: pd.DataFrame, count: int) -> Confidence:
    if count < FEW:
        return "possible"
    by_guess = bool(context.matches.rows["likely"].to_numpy(dtype=bool)[rows.index.to_numpy()].any())
    clock_off = any(clock.claimed for clock in context.clocks.clocks)
    return "likely" if by_guess or clock_off else "certain"


def _one(context: Context, rank: int, rows: pd.DataFrame, late: pd.DataFrame, line: Line) -> Finding:
    once, all_once = late_to(late), late_to(rows)
    toll, saving = line.figures["waited_ns"], line.figures["saved_ns"]
    if toll is None or saving is None:
        raise AssertionError("waits of unknown length were left out")
    waiting = tuple(sorted({int(r) for r in late.loc[late["rank"] != rank, "rank"]}))
    cause, told, why = _cause(context, late)
    within = "" if why is None else f": {why}"
    counted = [int(n) for n in (len(once), len(all_once))]
    return Finding(
        kind="straggler",
        # On CPUs ranks share cores, so each delays the others: worth knowing, not alarming.
        severity="info" if context.on_cpu else "warning",
        title=f"rank {rank} is last in {counted[0]} of {times(counted[1], 'collective')}, and the others "
        f"wait "
        f"{duration(toll)} a step ({percent(context.share(toll) or 0.0)}) for it{within}",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=min(toll, saving),
        bytes=None,
        count=max(1, round(len(once) / len(context.steps))),
        ranks=(rank,),
        where=told,
        evidence=(
            Evidence("last in", f"{counted[0]} of {times(counted[1], 'collective')}"),
            Evidence("arrives after the rank before it, median", int(once["late_ns"].median()), "ns"),
            Evidence("longest exposed wait for it", int(once["waited_ns"].max()), "ns"),
            Evidence("ranks that wait", ranks(waiting) if waiting else None),
            *cause,
        ),
        remedy=Remedy(
            *late_remedies.remedy(why is not None, cause, told.phase, rank),
            counterfactual="the same step with this rank arriving with the one before it",
        ),
        confidence=_confidence(context, late, len(once)),
    )


def _cause(context: Context, late: pd.DataFrame) -> tuple[tuple[Evidence, ...], Where, str | None]:
    """Return what the late rank did longer than the others: the parts, the place, a clause."""
    table = excess(context, late)
    if table.empty:
        return (), Where(), None
    sums = {name: float(table[name].sum()) / len(context.steps) for name in CAUSES}
    # Whole steps come first: lead-ups of collectives behind compute mislead (see step_excess).
    sums = step_excess(context, late) or sums
    order = sorted(sums, key=lambda name: -sums[name])
    parts = tuple(
        Evidence(f"longer {late_remedies.WORDS[name]}, a step", round(sums[name]), "ns")
        for name in order
        if sums[name] > 0
    )
    if not parts:
        return (), Where(), None
    first = order[0]
    clause = f"it spends {duration(sums[first])} longer {late_remedies.WORDS[first]} than the others"
    if first == "began_ns":
        clause = f"it begins its step {duration(sums[first])} after the others"
    if first != "compute_ns":
        return parts, Where(), clause
    longest = int(np.argmax(table["compute_ns"].to_numpy(dtype=np.float64)))
    top = table.iloc[longest][["phase", "module", "op"]]
    phase, module, kernel = (text(value) for value in top)
    if phase is not None:
        clause += f", most in {phase}" + (f" of {module}" if module else "")
    if kernel is not None:
        parts += (Evidence("kernel with the most time there", kernel),)
    return parts, Where(phase=phase, module=module, op=kernel), clause


def _turns(context: Context, rest: pd.DataFrame, line: Line, besides: bool) -> Finding:
    once = late_to(rest)
    toll = line.figures["waited_ns"]
    who = tuple(sorted({int(rank) for rank in once["late_rank"]}))
    last = once["late_rank"].value_counts()
    return Finding(
        kind="straggler",
        severity="info",
        title=f"ranks wait {duration(toll)} a step ({percent(context.share(toll) or 0.0)}) for late ones in "
        f"{times(len(once), 'other collective' if besides else 'collective')}, and no single rank is the "
        f"cause",
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=max(1, round(len(once) / len(context.steps))),
        ranks=who,
        evidence=(
            Evidence("collectives", len(once)),
            Evidence("ranks that were last", len(who)),
            Evidence("most often last", f"rank {last.index[0]}: {last.iloc[0]} of {len(once)}"),
            Evidence("arrives after the rank before it, median", int(once["late_ns"].median()), "ns"),
        ),
        remedy=Remedy(
            "Ranks take turns in being late: look for what differs from batch to batch (sequence lengths, "
            "experts' loads) and for noise on the hosts (other processes, garbage collection, checkpoints)."
        ),
        confidence=_confidence(context, rest, len(once)),
    )
