"""The figures of a step that a change may move: time by part, bytes, collectives, FLOPs."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from shardtoll.analyzers.two_runs.issued import BYTES, CALLS, issued
from shardtoll.analyzers.two_runs.judges import mean
from shardtoll.analyzers.two_runs.pair import TwoRuns
from shardtoll.analyzers.two_runs.steps import Chosen
from shardtoll.ledger import Report
from shardtoll.ledger.answers.verification import Quantity
from shardtoll.ledger.records.levels import exposure_doubted, exposure_told, in_steps, surveyed_steps

EXPOSED: Final = "exposed_comm_ns"
UNATTRIBUTED: Final = "unattributed_ns"
PARTS: Final = {
    "compute_ns": "computing",
    EXPOSED: "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
    UNATTRIBUTED: "unattributed",
}
"""Part of a step -> its name; all of them add up to `WHOLE`."""
WHOLE: Final = "step, own work"


def figures(runs: TwoRuns) -> tuple[Quantity, ...]:
    """Return each figure of a mean step of the slowest rank; FLOPs are of all ranks.

    The parts add up to that rank's step. The steps are those whose times are compared, if the report divides
    them, as it does on its first screen. The first ones, which set things up, are left out. Else they are the
    surveyed ones. If no step was surveyed, they are the timed ones, without the parts that only a survey
    tells. Names say which steps they are. Without surveyed steps, exposed communication is of the steps that
    know it, on the rank with the most. It is a lower bound if that of a collective is unknown. Collectives
    and bytes are those that `compare` counts: of the timed steps, a mean over the ranks.
    """
    divided = all(runs.each(_is_divided))
    parts = runs.each(lambda report, chosen: _of(report, chosen, divided=divided))
    told = _named(parts, [runs.timed_words()] * 2 if divided else _kinds(runs))
    work = runs.each(lambda report, chosen: [_flops(report, chosen)])
    return (*told, *_named(work, _kinds(runs)), *_issued(runs))


def _kinds(runs: TwoRuns) -> list[str]:
    return [
        "surveyed steps" if surveyed_steps(each.tables["steps"]) else "all steps" for each in runs.reports
    ]


def _named(figures_of: tuple[list[_Figure], list[_Figure]], kinds: list[str]) -> tuple[Quantity, ...]:
    of = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} before, {kinds[1]} after"
    return tuple(
        Quantity(f"{name} ({of})", unit, was, now, (was_least, now_least))
        for (name, unit, was, was_least), (_, _, now, now_least) in zip(*figures_of, strict=True)
        if was is not None or now is not None
    )


def _is_divided(report: Report, chosen: Chosen) -> bool:
    """Whether all timed steps are watched ones that are divided like surveyed ones."""
    rows = in_steps(report.tables["steps"], chosen.timed)
    return rows.num_rows > 0 and not rows.column("parts_error_ns").null_count


def _issued(runs: TwoRuns) -> tuple[Quantity, ...]:
    was, now = runs.each(issued)
    if not (len(was.calls) and len(now.calls)):
        return ()
    of = f"mean over ranks, {runs.timed_words()}"
    bounds = (was.calls_at_least, now.calls_at_least), (was.bytes_at_least, now.bytes_at_least)
    return (
        Quantity(f"{CALLS} ({of})", None, mean(was.calls), mean(now.calls), bounds[0]),
        Quantity(f"{BYTES} ({of})", "bytes", mean(was.message_bytes), mean(now.message_bytes), bounds[1]),
    )


_Figure: TypeAlias = tuple[str, str | None, float | None, bool]
"""Name, unit, value, and whether that is a lower bound."""


def _surveyed(report: Report, chosen: Chosen) -> tuple[int, ...]:
    # A run whose only surveyed steps are its first has no others to tell of operators.
    return chosen.surveyed or tuple(surveyed_steps(report.tables["steps"]))


def _of(report: Report, chosen: Chosen, *, divided: bool) -> list[_Figure]:
    surveyed = () if divided else _surveyed(report, chosen)
    numbers = surveyed or chosen.timed
    rows = report.steps
    rows = rows[rows["step"].isin(numbers)]
    # With it the parts have a whole of their own: a surveyed step is longer than a watched one.
    known = _divided(rows) if surveyed or divided else {}
    figures_of_run: list[_Figure] = [(WHOLE, "ns", known.get(WHOLE), False)]
    for column, name in PARTS.items():
        if column == EXPOSED and not known:
            figures_of_run.append((name, "ns", *_exposed(report, rows, numbers)))
        else:
            figures_of_run.append((name, "ns", known.get(name), False))
    return figures_of_run


def _flops(report: Report, chosen: Chosen) -> _Figure:
    surveyed = _surveyed(report, chosen)
    work = report.computes[["step", "flops"]]
    work = work[work["step"].isin(surveyed)]
    done = float(work["flops"].to_numpy(dtype=np.float64).sum()) / len(surveyed) if surveyed else None
    return "FLOPs, all ranks", "FLOP", done, False


def _exposed(report: Report, rows: pd.DataFrame, numbers: tuple[int, ...]) -> tuple[float | None, bool]:
    """Return the mean of the steps that tell it, on the rank where it is most; and whether it may be more."""
    rows_told = in_steps(exposure_told(report.tables), numbers)
    means = rows_told.group_by("rank").aggregate([(EXPOSED, "mean")])
    if not len(means):
        return None, False
    # A rank that never tells may be the one where it is most.
    silent = len(means) < rows["rank"].nunique()
    doubted = in_steps(exposure_doubted(report.tables), numbers).filter(pc.field(EXPOSED) > 0)
    return pc.max(means.column(f"{EXPOSED}_mean")).as_py(), silent or bool(len(doubted))


def _divided(rows: pd.DataFrame) -> dict[str, float]:
    """Return the slowest rank's mean step and its parts, by name; capture's own work is in none of them.

    A rank's mean is that of its own rows: one that ended early took no less time for its steps.
    """
    parts = rows[["rank", "duration_ns", *PARTS]].astype("float64")
    for column in ("duration_ns", UNATTRIBUTED):
        parts[column] -= rows["capture_ns"].astype("float64")
    means = parts.groupby("rank").mean()
    if means.empty:
        return dict.fromkeys((WHOLE, *PARTS.values()), 0.0)
    slowest = means.loc[means["duration_ns"].idxmax()]
    return {WHOLE: float(slowest["duration_ns"])} | {
        name: float(slowest[column]) for column, name in PARTS.items()
    }
