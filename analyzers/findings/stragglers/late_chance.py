"""Whether a rank is late by habit or by chance, and whether that is worth a warning."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.context.fill import LEAST_LATE_NS
from shardtoll.analyzers.context.peers import ROOTED
from shardtoll.analyzers.findings.stragglers.late_asleep import slept_late
from shardtoll.analyzers.findings.stragglers.late_cause import cause_of
from shardtoll.analyzers.findings.stragglers.lateness import late_to
from shardtoll.analyzers.findings.stragglers.own_steps import slow_steps
from shardtoll.analyzers.findings.stragglers.step_excess import EXPLAINS
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger import Confidence
from shardtoll.ledger.words.human import plural as times

FEW: Final = 3
"""Collectives below which being last may be chance."""

STEADY: Final = 0.8
"""Part of the steps in which the others must wait for the rank more than it and they for all others."""

FIRM: Final = 2.0
"""Least ratio of the extra waiting for it to its random change from step to step: below it is noise."""

UNEXPLAINED_STEPS: Final = 8
"""On CPUs, steps from which a rank that is steadily last is so by habit, cause or none."""

CPU_WARNING_SHARE: Final = 0.2
"""On CPUs ranks share cores, so each delays the others: below that share of the step it is information."""


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
        return f"others wait for it most in only {more} of {times(len(each), 'step')}"
    if float(each.mean()) < FIRM * float(each.std()) / np.sqrt(len(each)):
        return "the waiting varies from step to step more than its mean supports"
    return None


def alarming(context: Context, toll_ns: int, rows: pd.DataFrame, rank: int) -> bool:
    """Whether a late rank is worth a warning: it costs enough on what it runs, and not by chance."""
    return worth_a_warning(context, toll_ns) and by_chance(context, rows, rank) is None


def worth_a_warning(context: Context, toll_ns: int) -> bool:
    """Whether waiting costs enough for a warning: on CPUs ranks share cores and delay each other."""
    return not context.on_cpu or (context.share(toll_ns, context.timed) or 0.0) >= CPU_WARNING_SHARE


def by_chance(context: Context, rows: pd.DataFrame, rank: int) -> str | None:
    """Return why being last may be noise; None if it is habit.

    On CPUs ranks delay each other by turns, so that there a few steps tell only with a cause or its sleep.
    """
    late = keep(rows, (rows["late_rank"] == rank) & (rows["late_ns"] >= LEAST_LATE_NS))
    why = noisy(context, rows, rank)
    if why is not None and _by_its_own_steps(context, late, rank):
        return None
    few = context.on_cpu and len(context.alike) < UNEXPLAINED_STEPS
    if why is None and few and cause_of(context, late).part is None and not _slept(context, late, rank):
        return "on CPUs ranks delay each other, and nothing that this rank did took longer"
    return why


def _slept(context: Context, late: pd.DataFrame, rank: int) -> bool:
    waited = context.shown(late).groupby("rank")["waited_ns"].sum()
    return not waited.empty and slept_late(context, rank, float(waited.max()) / len(context.timed))


def _by_its_own_steps(context: Context, late: pd.DataFrame, rank: int) -> bool:
    """Whether nearly all waiting for the rank is in steps that it itself made longer."""
    slow = slow_steps(context, rank)
    if slow is None or late.empty:
        return False
    there = keep(late, late["step"].isin(slow.steps))
    waited = float(there.groupby("rank")["waited_ns"].sum().max()) if len(there) else 0.0
    if there["waited_ns"].sum() < STEADY * late["waited_ns"].sum():
        return False
    return slow.more_ns * len(slow.steps) >= EXPLAINS * waited


def confidence_in(context: Context, rows: pd.DataFrame, count: int) -> Confidence:
    """Return how sure it is who came last; `count` is the number of collectives."""
    if count < FEW:
        return "possible"
    by_guess = bool(context.matches.rows["likely"].to_numpy(dtype=bool)[rows.index.to_numpy()].any())
    by_guess = by_guess or bool(rows["op"].isin(ROOTED).any())
    clock_off = any(clock.claimed for clock in context.clocks.clocks)
    return "likely" if by_guess or clock_off else "certain"
