"""A collective that a loop issues in every step: what it costs, and what is left without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import Line, Tally, keep, tally, with_columns
from shardtoll.ledger import Rows, Severity
from shardtoll.ledger.words.human import duration

WARNING_SHARE: Final = 0.01
"""Share of the step that the remedy saves from which a habit is a warning."""

LEAST_STEPS: Final = 3
"""Steps from which what happens in each of them is a habit."""

TELLING: Final = 0.1
"""Part of the toll that is no saving, from which the finding says why."""

FIGURES: Final = ("exposed_ns", "own_ns", "message_bytes")


class Habit(Struct, frozen=True):
    """Collectives of one place that each rank of their group issues in each step."""

    line: Line
    rows: pd.DataFrame
    """Those of the steps that were asked for."""
    spoken: Rows
    """All of them, as a finding names its rows."""
    over: frozenset[int]
    """The ranks of their group."""


class Price(Struct, frozen=True):
    """Cost per step of the collectives of one place, each figure on the rank where it is largest."""

    toll_ns: int | None
    saving_ns: int | None
    """The toll without waiting for late ranks: that goes on to the next collective."""
    severity: Severity

    def against(self, which: str) -> str | None:
        """Return the step that the saving stands against, without `which` collectives, and why it is less
        than the toll; None without a saving."""
        if self.toll_ns is None or self.saving_ns is None:
            return None
        step, moved_ns = f"the same step without {which}", self.toll_ns - self.saving_ns
        if moved_ns < TELLING * self.toll_ns or not moved_ns:
            return step
        # The saving may be of another rank. On the toll's no more than that moves: the rest waits.
        rest = f"at least {duration(moved_ns)} of the toll is waiting"
        return f"{step}; {rest}, which moves to the next collective"


def habits(
    context: Context, frame: pd.DataFrame, columns: Sequence[str], steps: Sequence[int]
) -> Iterator[Habit]:
    """Yield the groups of collectives by `columns` that each rank of their group issues in each of `steps`.

    None if there are too few steps for a habit.
    """
    if frame.empty or len(steps) < LEAST_STEPS:
        return
    result = priced(context, frame, columns)
    for line in result.lines:
        over = frozenset(context.members.get((str(line.first["group"]), line.ranks[0]), ()))
        rows = frame[result.code == line.code]
        rows = keep(rows, rows["step"].isin(steps))
        if set(line.ranks) == over and in_each(rows, steps, line.ranks):
            yield Habit(line, rows, Rows.of(collectives=result.places(line)), over)


def priced(context: Context, frame: pd.DataFrame, columns: Sequence[str]) -> Tally:
    """Return the groups of collectives of steps by `columns`, with `FIGURES`."""
    own = (frame["exposed_ns"] - frame["waited_ns"].fillna(0)).clip(lower=0)
    # Exposed time of which the wait is unknown may all be waiting.
    own = own.where(frame["waited_ns"].notna() | (frame["exposed_ns"] == 0))
    return tally(with_columns(frame, own_ns=own), columns, FIGURES, context.steps, times_in=context.timed)


def price(context: Context, line: Line) -> Price:
    """Return what a group costs."""
    toll, own = line.figures["exposed_ns"], line.figures["own_ns"]
    saving = None if toll is None or own is None else min(toll, own)
    share = context.share(saving, context.timed) or 0.0
    return Price(toll, saving, "warning" if share >= WARNING_SHARE else "info")


def in_each(frame: pd.DataFrame, steps: Sequence[int], ranks: Sequence[int]) -> bool:
    """Whether each of the ranks has rows in each of the steps."""
    pairs = frame.loc[frame["step"].isin(steps) & frame["rank"].isin(ranks), ["step", "rank"]]
    return len(pairs.drop_duplicates()) == len(steps) * len(ranks)
