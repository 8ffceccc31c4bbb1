"""Work that a late rank did longer than the ranks that waited for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from msgspec import Struct, field

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers import late_remedies
from shardtoll.analyzers.findings.stragglers.late_place import late_place
from shardtoll.analyzers.findings.stragglers.lateness import CAUSES, at_the_start, excess, host_computes
from shardtoll.analyzers.findings.stragglers.step_excess import step_excess, told_steps
from shardtoll.analyzers.shared.tally import keep, text
from shardtoll.ledger import Evidence, Where
from shardtoll.ledger.words.human import duration, others


class Cause(Struct, frozen=True):
    """Work that a late rank did longer than the others."""

    part: str | None = None
    """One of `lateness.CAUSES`; None if unknown."""
    parts: tuple[Evidence, ...] = ()
    where: Where = field(default_factory=Where)
    clause: str | None = None
    """As it stands in a sentence."""
    more_ns: Mapping[str, float] = field(default_factory=dict)
    """Part of `lateness.CAUSES` -> how much longer it takes per step."""
    lines: str | None = None
    """As `LatePlace.lines`."""


def cause_of(context: Context, late: pd.DataFrame) -> Cause:
    """Return what the late rank did longer than the others."""
    table = excess(context, late)
    # Whole steps come first: lead-ups of collectives behind compute mislead (see step_excess).
    sums = step_excess(context, late)
    if not sums and not table.empty:
        steps = len(told_steps(context))
        sums = {name: float(table[name].sum()) / steps for name in CAUSES}
    timed = _as_timed(context, late)
    sums = {name: more_ns * timed for name, more_ns in sums.items()}
    order = sorted(sums, key=lambda name: -sums[name])
    words = {name: late_remedies.words(name, on_cpu=host_computes(context)) for name in order}
    parts = tuple(
        Evidence(f"more time {words[name]}, per step", round(sums[name]), "ns")
        for name in order
        if sums[name] > 0
    )
    if not parts:
        return Cause()
    first = order[0]
    count = context.ledger.run.world_size - 1
    clause = f"it spends {duration(sums[first])} longer {words[first]} than {others(count)}"
    if first == "began_ns":
        of = "the median of the others" if count > 1 else others(count)
        clause = f"it begins its step {duration(sums[first])} after {of}"
    if table.empty and first in ("compute_ns", "host_ns"):
        where_late = late_place(context, late, first)
        if where_late is not None:
            # A median over steps; all of it is a mean.
            longest_ns = min(where_late.longer_ns * timed, sums[first])
            parts += (Evidence("longest of it in one place, per step", round(longest_ns), "ns"),)
            clause = f"{clause}, most {where_late.clause}"
            return Cause(first, parts, where_late.where, clause, sums, where_late.lines)
    if first != "compute_ns" or table.empty:
        return Cause(first, parts, clause=clause, more_ns=sums)
    longest = int(np.argmax(table["compute_ns"].to_numpy(dtype=np.float64)))
    top = table.iloc[longest][["phase", "module", "op"]]
    phase, module, kernel = (text(value) for value in top)
    if phase is not None:
        clause += f", most in {phase}" + (f" of {module}" if module else "")
    if kernel is not None:
        parts += (Evidence("kernel with the most time there", kernel),)
    return Cause(first, parts, Where(phase=phase, module=module, op=kernel), clause, sums)


def _as_timed(context: Context, late: pd.DataFrame) -> float:
    """Return how long others wait for the rank per step that the bars show, over that in steps that tell why.

    Surveyed steps show why, and the first of them sets things up. The work that makes a rank late there may
    be longer than a whole watched step. 1 if some tell both, or others wait in one kind of them only. Never
    more: if they wait for a reason that is not on record, the known one is no longer for it.
    """

    def waited(steps: Collection[int]) -> float:
        each = keep(late, late["step"].isin(steps)).groupby("rank")["waited_ns"].sum()
        return float(each.max()) / len(steps) if len(each) else 0.0

    shown, telling = context.timed, set(told_steps(context)) & set(context.alike)
    if not set(shown).isdisjoint(telling):
        return 1.0
    per_shown, per_telling = waited(shown), waited(telling)
    return min(1.0, per_shown / per_telling) if per_shown > 0 and per_telling > 0 else 1.0


def uncertain(context: Context, late: pd.DataFrame) -> bool:
    """Whether the waiting may only show that ranks began to record at different moments."""
    return at_the_start(late, context.timed) and cause_of(context, late).part in (None, "began_ns")
