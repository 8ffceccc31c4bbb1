"""Shared by the analyses of lost time: the rows of one kind, added up, as findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stragglers.step_excess import told_steps
from shardtoll.analyzers.shared.tally import Line, keep, steps_spoken_of, tally
from shardtoll.ledger import Confidence, Evidence, Figure, Finding, Remedy, Rows, Severity, Where
from shardtoll.ledger.words.human import duration, percent

LEAST_SHARE: Final = 0.01
"""Share of the step from which lost time is worth a finding: noise is 1 to 4 % of a step."""

WARNING_SHARE: Final = 0.05
NAMED: Final = 0.1
"""Part of what the worst rank loses from which another rank is named too: all lose a little at a start."""

NAMES_SHOWN: Final = 5
VALUES: Final = ("lost_ns", "count", "total_ns", "bytes")


class Lost(Struct, frozen=True):
    """One kind of lost time at one place."""

    line: Line
    rows: pd.DataFrame
    steps: int
    """Steps that it is counted over, those without any too."""
    share: float
    """Share of the step, on the rank that loses most."""
    spoken: Rows
    """The steps in which the ranks lose it."""

    @property
    def lost_ns(self) -> int:
        """Time lost per step on the rank that loses most."""
        value = self.line.figures["lost_ns"]
        assert value is not None, "lost_ns is always known"
        return value

    @property
    def often(self) -> str:
        """How often it happens on the rank where it does most: `3 times per step`, `once in 4 steps`."""
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
    context: Context,
    kind: str,
    columns: Sequence[str] = (),
    besides: pd.DataFrame | None = None,
    besides_in: tuple[int, ...] | None = None,
    without: Collection[int] = (),
) -> list[Lost]:
    """Return the places of a kind of stall that cost at least `LEAST_SHARE` of the step, largest first.

    `columns` tell places apart; none takes all rows as one. `besides`: rows of the stalls' columns that
    other tables tell of, in the steps `besides_in`; None: in those `timed`. `without`: ranks left out.
    """
    rows, steps = lost_rows(context, kind, besides, besides_in)
    rows = keep(rows, ~rows["rank"].isin(without))
    if rows.empty or not context.step_ns:
        return []
    rows = rows.assign(all=0)
    result = tally(rows, ("all", *columns), VALUES, steps)
    places = []
    for line in result.lines:
        here = keep(rows, np.asarray(result.code == line.code))
        lost_ns = line.figures["lost_ns"]
        # Operators on record in surveyed steps are priced as in watched ones: see `Context.priced_computes`.
        priced = besides_in is not None and steps == besides_in
        share = (context.share_as_watched(lost_ns) if priced else context.share(lost_ns, steps)) or 0.0
        losers = _losers(here)
        spoken = steps_spoken_of(context.step_rows, losers, here["step"].unique())
        places.append(Lost(replace(line, ranks=losers), here, len(steps), share, spoken))
    return sorted((stall for stall in places if stall.share >= LEAST_SHARE), key=lambda stall: -stall.lost_ns)


def lost_rows(
    context: Context,
    kind: str,
    besides: pd.DataFrame | None = None,
    besides_in: tuple[int, ...] | None = None,
) -> tuple[pd.DataFrame, tuple[int, ...]]:
    """Return the rows of a kind of stall and the steps they are of; `besides`, `besides_in`: see `lost`."""
    stalls, steps = context.stalls_in_steps, told_steps(context)
    rows = keep(stalls, (stalls["kind"] == kind) & stalls["step"].isin(steps))
    if besides is None or besides.empty:
        return rows, steps
    if rows.empty:
        if besides_in is not None:
            return besides, besides_in
        return context.shown(besides), context.timed
    # They add up to what a step loses only if both are known.
    return pd.concat([rows, keep(besides, besides["step"].isin(steps))], ignore_index=True), steps


def _losers(rows: pd.DataFrame) -> tuple[int, ...]:
    """Return the ranks that lose at least `NAMED` of what the worst one loses."""
    each = rows.groupby("rank")["lost_ns"].sum()
    return tuple(int(rank) for rank in each.index[each >= NAMED * each.max()])


def often(count: int | None) -> str:
    """Return how often something happens per step; the mean is rounded, so below one it is said so."""
    if count is None:
        return "an unknown number of times per step"
    if count == 0:
        return "less than once per step"
    return "once per step" if count == 1 else f"{count:,} times per step"


def rarely(count: int, steps: int) -> str:
    """Return `once in 4 steps` for less than once per step; nothing at all is `0 times per step`."""
    if not count:
        return "0 times per step"
    return f"once in {round(steps / count):,} steps"


def finding(
    stall: Lost,
    kind: str,
    title: str,
    remedy: Remedy,
    *,
    where: Where | None = None,
    toll_ns: int | None = None,
    saving_ns: int | None = None,
    evidence: tuple[Evidence, ...] = (),
    confidence: Confidence = "likely",
    rows: Rows | None = None,
) -> Finding:
    """Return the finding of one place; its toll is what the worst rank loses per step, if not given.

    `rows` None: it speaks of the steps in which the time is lost.
    """
    names = stall.rows.groupby("name")["lost_ns"].sum().sort_values(ascending=False, kind="stable")
    toll = stall.lost_ns if toll_ns is None else toll_ns
    share = stall.share * toll / max(1, stall.lost_ns)
    severity: Severity = "warning" if share >= WARNING_SHARE else "info"
    return Finding(
        kind=kind,
        severity=severity,
        title=title,
        toll_ns=toll,
        floor_ns=None,
        saving_ns=None if saving_ns is None else min(saving_ns, toll),
        bytes=stall.line.figures["bytes"] if kind == "transfer-stall" else None,
        # If it happens at all, it counts at least once, as everywhere in the bill.
        count=max(stall.line.figures["count"] or 0, int(stall.rows["count"].sum() > 0)),
        ranks=stall.line.ranks,
        where=where or Where(),
        evidence=(
            Evidence("lost on the worst rank, per step", stall.lost_ns, "ns"),
            Evidence("worst rank", stall.worst),
            Evidence("total duration there, per step", stall.line.figures["total_ns"], "ns"),
            Evidence("share of the step", round(stall.share, 4), "share"),
            *(
                Evidence(f"lost to {name}, all ranks and steps", int(value), "ns")
                for name, value in list(names.items())[:NAMES_SHOWN]
                if name
            ),
            *evidence,
        ),
        remedy=remedy,
        confidence=confidence,
        figures=(
            Figure("lost_ns", stall.lost_ns, "ns"),
            Figure("share_of_step", round(stall.share, 4), "share"),
        ),
        rows=stall.spoken if rows is None else rows,
    )


def costs(stall: Lost) -> str:
    """Return `1.2 ms per step (3 %)`."""
    return f"{duration(stall.lost_ns)} per step ({percent(stall.share)})"
