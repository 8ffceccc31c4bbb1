"""What the analyses of lost time share: the rows of one kind, added up, as findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.step_excess import told_steps
from shardtoll.analyzers.tally import Line, keep, tally
from shardtoll.analyzers.words import duration, percent
from shardtoll.ledger import Confidence, Evidence, Finding, Remedy, Severity, Where

LEAST_SHARE: Final = 0.01
"""Share of the step from which lost time is worth a finding: noise is 1 to 4 % of a step."""

WARNING_SHARE: Final = 0.05
NAMED: Final = 0.1
"""Part of what the worst rank loses from which another rank is named too: all lose a little at a start."""

NAMES_SHOWN: Final = 5
VALUES: Final = ("lost_ns", "count", "total_ns", "bytes")


@dataclass(frozen=True, slots=True)
class Lost:
    """One kind of lost time at one place."""

    line: Line
    rows: pd.DataFrame
    steps: int
    """Steps that it is counted over, those without any too."""
    share: float
    """Of the step, on the rank that loses most."""

    @property
    def lost_ns(self) -> int:
        """Time lost per step on the rank that loses most."""
        value = self.line.figures["lost_ns"]
        assert value is not None, "lost_ns is always known"
        return value

    @property
    def often(self) -> str:
        """How often it happens on the rank where it does most: `3 times a step`, `once in 4 steps`."""
        count = self.line.figures["count"]
        if count == 0:
            return rarely(int(self.rows.groupby("rank")["count"].sum().max()), self.steps)
        return often(count)

    @property
    def worst(self) -> int:
        """The rank that loses most."""
        each = self.rows.groupby("rank")["lost_ns"].sum()
        return int(each.index[int(np.argmax(each.to_numpy(dtype=np.int64)))])


def lost(
    context: Context, kind: str, columns: Sequence[str] = (), besides: pd.DataFrame | None = None
) -> list[Lost]:
    """Return the places of a kind of stall that cost at least `LEAST_SHARE` of the step, dearest first.

    `columns` tell places apart; none takes all rows as one. `besides`: rows of the stalls' columns that
    other tables tell of, all in the steps `alike`.
    """
    stalls, steps = context.stalls_in_steps, told_steps(context)
    rows = keep(stalls, (stalls["kind"] == kind) & stalls["step"].isin(steps))
    if besides is not None and not besides.empty:
        if rows.empty:
            rows, steps = besides, context.alike
        else:
            # Only where both are told do they add up to what a step loses.
            rows = pd.concat([rows, keep(besides, besides["step"].isin(steps))], ignore_index=True)
    rows = rows.assign(all=0)
    if rows.empty or not context.step_ns:
        return []
    result = tally(rows, ("all", *columns), VALUES, steps)
    found = []
    for line in result.lines:
        here = keep(rows, np.asarray(result.code == line.code))
        share = context.share(line.figures["lost_ns"], steps) or 0.0
        found.append(Lost(replace(line, ranks=_losers(here)), here, len(steps), share))
    return sorted((one for one in found if one.share >= LEAST_SHARE), key=lambda one: -one.lost_ns)


def _losers(rows: pd.DataFrame) -> tuple[int, ...]:
    """Return the ranks that lose at least `NAMED` of what the worst one loses."""
    each = rows.groupby("rank")["lost_ns"].sum()
    return tuple(int(rank) for rank in each.index[each >= NAMED * each.max()])


def often(count: int | None) -> str:
    """Return how often something happens per step; the mean is rounded, so below one it is said so."""
    if count is None:
        return "an unknown number of times a step"
    if count == 0:
        return "less than once a step"
    return "once a step" if count == 1 else f"{count:,} times a step"


def rarely(count: int, steps: int) -> str:
    """Return `once in 4 steps` of what happens less than once a step; nothing at all is `0 times a step`."""
    if not count:
        return "0 times a step"
    return f"once in {round(steps / count):,} steps"


def finding(
    one: Lost,
    kind: str,
    title: str,
    remedy: Remedy,
    *,
    where: Where | None = None,
    saving_ns: int | None = None,
    evidence: tuple[Evidence, ...] = (),
    confidence: Confidence = "likely",
) -> Finding:
    """Return the finding of one place; its toll is the time lost per step on the worst rank."""
    names = one.rows.groupby("name")["lost_ns"].sum().sort_values(ascending=False, kind="stable")
    severity: Severity = "warning" if one.share >= WARNING_SHARE else "info"
    return Finding(
        kind=kind,
        severity=severity,
        title=title,
        toll_ns=one.lost_ns,
        floor_ns=None,
        saving_ns=None if saving_ns is None else min(saving_ns, one.lost_ns),
        bytes=one.line.figures["bytes"] if kind == "transfer-stall" else None,
        # What happens at all is one at least, as everywhere in the bill.
        count=max(one.line.figures["count"] or 0, int(one.rows["count"].sum() > 0)),
        ranks=one.line.ranks,
        where=where or Where(),
        evidence=(
            Evidence("lost on the worst rank, a step", one.lost_ns, "ns"),
            Evidence("worst rank", one.worst),
            Evidence("lasted in all there, a step", one.line.figures["total_ns"], "ns"),
            Evidence("share of the step", round(one.share, 4)),
            *(
                Evidence(f"lost to {name}, all ranks and steps", int(value), "ns")
                for name, value in list(names.items())[:NAMES_SHOWN]
                if name
            ),
            *evidence,
        ),
        remedy=remedy,
        confidence=confidence,
    )


def costs(one: Lost) -> str:
    """Return `1.2 ms a step (3 %)`."""
    return f"{duration(one.lost_ns)} a step ({percent(one.share)})"
