"""The figures of a step that a change may move: time by part, bytes, collectives, FLOPs."""

from __future__ import annotations

from typing import Final, TypeAlias

import pandas as pd
import pyarrow.compute as pc

from shardtoll.analyzers.step_change import settled
from shardtoll.ledger import Report
from shardtoll.ledger.levels import in_steps, surveyed_steps, watched_steps
from shardtoll.ledger.told import exposure_doubted, exposure_told
from shardtoll.ledger.verification import Quantity

EXPOSED: Final = "exposed_comm_ns"
PARTS: Final = {
    "compute_ns": "computing",
    EXPOSED: "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
}


def figures(before: Report, after: Report) -> tuple[Quantity, ...]:
    """Return each figure, of a mean surveyed step, on the rank where it is most; FLOPs are of all ranks.

    The first step, which sets things up, is left out where two more are there. Where no step was surveyed,
    of all steps, and without the parts that only a survey tells. Names say which steps they are of. Exposed
    communication is of those of them that tell it, and a lower bound where a collective's is not known.
    """
    pairs = zip(_of(before), _of(after), strict=True)
    kinds = ["surveyed steps" if surveyed_steps(r.tables["steps"]) else "all steps" for r in (before, after)]
    of = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} before, {kinds[1]} after"
    return tuple(
        Quantity(f"{name} ({of})", unit, was, now, (was_least, now_least))
        for (name, unit, was, was_least), (_, _, now, now_least) in pairs
        if was is not None or now is not None
    )


_Figure: TypeAlias = tuple[str, str | None, float | None, bool]
"""Name, unit, value, and whether that is a lower bound."""


def _of(report: Report) -> list[_Figure]:
    surveyed = settled(surveyed_steps(report.tables["steps"]))
    rows = report.steps
    numbers = surveyed or settled(tuple(sorted(set(rows["step"]))))
    rows = rows[rows["step"].isin(numbers)]
    own = (rows["duration_ns"] - rows["capture_ns"]).astype("float64")
    found: list[_Figure] = [
        # With it the parts have a whole of their own: a surveyed step is longer than a watched one.
        ("step, own work", "ns", _most(rows, own, len(numbers)) if surveyed else None, False)
    ]
    for column, name in PARTS.items():
        if column == EXPOSED:
            found.append((name, "ns", *_exposed(report, rows, numbers)))
        else:
            value = _most(rows, rows[column], len(numbers)) if surveyed else None
            found.append((name, "ns", value, False))
    calls = report.collectives[["step", "rank", "message_bytes"]]
    calls = calls[calls["step"].isin(numbers)]
    whole = not watched_steps(report.tables["steps"]) or bool(surveyed)
    moved = _most(calls, calls["message_bytes"], len(numbers)) if whole else None
    lacks = _lacking(report, numbers)
    unsized = bool(calls["message_bytes"].isna().any())
    found.append(("message bytes", "bytes", moved, moved is not None and (lacks or unsized)))
    ones = pd.Series(1, index=calls.index)
    count = _most(calls, ones, len(numbers)) if whole and len(numbers) else None
    found.append(("collectives", None, count, count is not None and lacks))
    work = report.computes[["step", "flops"]]
    work = work[work["step"].isin(surveyed)]
    done = float(work["flops"].sum()) / len(surveyed) if surveyed else None
    found.append(("FLOPs, all ranks", "FLOP", done, False))
    return found


def _lacking(report: Report, numbers: tuple[int, ...]) -> bool:
    """Return whether a group counted more collectives in these steps than are on record."""
    counts = in_steps(report.tables["counts"], numbers)
    return bool(pc.any(pc.greater(counts.column("issued"), counts.column("recorded"))).as_py())


def _exposed(report: Report, rows: pd.DataFrame, numbers: tuple[int, ...]) -> tuple[float | None, bool]:
    """Return the mean of the steps that tell it, on the rank where it is most; and whether it may be more."""
    told = in_steps(exposure_told(report.tables), numbers)
    means = told.group_by("rank").aggregate([(EXPOSED, "mean")])
    if not len(means):
        return None, False
    # A rank that never tells may be the one where it is most.
    silent = len(means) < rows["rank"].nunique()
    doubted = in_steps(exposure_doubted(report.tables), numbers).filter(pc.field(EXPOSED) > 0)
    return pc.max(means.column(f"{EXPOSED}_mean")).as_py(), silent or bool(len(doubted))


def _most(rows: pd.DataFrame, values: pd.Series[float], steps: int) -> float | None:
    """Return the mean over steps of the rank where it is most; None without steps, 0 without rows."""
    if not steps:
        return None
    if rows.empty:
        return 0.0
    most = values.groupby(rows["rank"]).sum().max()
    return None if pd.isna(most) else float(most) / steps
