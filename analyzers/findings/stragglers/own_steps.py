"""A rank that is slow in some of its steps, against its own other steps."""

from __future__ import annotations

from typing import Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.origins.over_steps import FEWEST
from shardtoll.analyzers.findings.stragglers.step_excess import PARTS, totals
from shardtoll.analyzers.shared.tally import keep

LEAST_SHARE: Final = 0.05
"""Part of the step that a rank must take longer than usual for its step to be slow."""

LEAST_STEPS: Final = 2
"""Slow steps from which a rank is slow by habit: once may be chance."""

MOST_STEPS: Final = 0.5
"""Largest share of slow steps: with more, a rank's median says nothing of the others."""


class SlowSteps(Struct, frozen=True):
    """The steps in which a rank takes longer than in its others, while other ranks do not."""

    steps: tuple[int, ...]
    of: int
    """Steps that were compared."""
    part: str
    """The part that takes longer: one of `step_excess.PARTS`."""
    more_ns: int
    """Excess of that part, mean of the slow steps."""


def beyond_usual(context: Context, rank: int) -> pd.DataFrame:
    """Return, by step and part, what a rank takes beyond its median, less what other ranks then do."""
    table, parts = totals(context), list(PARTS)
    mine = keep(table, table["rank"] == rank).set_index("step")[parts]
    others = keep(table, table["rank"] != rank)
    theirs = others[parts] - others.groupby("rank")[parts].transform("median")
    beyond: pd.DataFrame = mine - mine.quantile(0.5, interpolation="lower")
    if others.empty:
        return beyond
    less: pd.DataFrame = (beyond - theirs.groupby(others["step"]).median()).dropna()
    return less


def slow_steps(context: Context, rank: int) -> SlowSteps | None:
    """Return the slow steps of a rank; None if it has none, or they are not clear.

    On CPUs ranks delay each other in some steps, by chance.
    """
    if context.on_cpu or not context.step_ns or len(context.ledger.run.ranks_seen) < 2:
        return None
    beyond = beyond_usual(context, rank)
    if len(beyond) <= FEWEST:
        return None
    slow = beyond[beyond.sum(axis=1) >= LEAST_SHARE * context.step_ns]
    if not LEAST_STEPS <= len(slow) <= MOST_STEPS * len(beyond):
        return None
    each = slow.mean()
    part = max(PARTS, key=lambda name: float(each[name]))
    return SlowSteps(tuple(int(step) for step in slow.index), len(beyond), part, round(float(each[part])))
