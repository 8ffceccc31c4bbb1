"""The figures of a step that a change may move: time by part, bytes, collectives, FLOPs."""

from __future__ import annotations

from typing import Final

import pandas as pd

from shardtoll.analyzers.step_change import settled
from shardtoll.ledger import Report
from shardtoll.ledger.levels import surveyed_steps, watched_steps
from shardtoll.ledger.verification import Quantity

PARTS: Final = {
    "compute_ns": "computing",
    "exposed_comm_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
}


def figures(before: Report, after: Report) -> tuple[Quantity, ...]:
    """Return each figure, of a mean surveyed step, on the rank where it is most; FLOPs are of all ranks.

    The first step, which sets things up, is left out where two more are there. Where no step was surveyed,
    of all steps, and without the parts that only a survey tells. Names say which steps they are of.
    """
    pairs = zip(_of(before), _of(after), strict=True)
    kinds = ["surveyed steps" if surveyed_steps(r.tables["steps"]) else "all steps" for r in (before, after)]
    of = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} before, {kinds[1]} after"
    return tuple(
        Quantity(f"{name} ({of})", unit, was, now)
        for (name, unit, was), (_, _, now) in pairs
        if was is not None or now is not None
    )


def _of(report: Report) -> list[tuple[str, str | None, float | None]]:
    surveyed = settled(surveyed_steps(report.tables["steps"]))
    rows = report.steps
    numbers = surveyed or settled(tuple(sorted(set(rows["step"]))))
    rows = rows[rows["step"].isin(numbers)]
    own = (rows["duration_ns"] - rows["capture_ns"]).astype("float64")
    found: list[tuple[str, str | None, float | None]] = [
        # With it the parts have a whole of their own: a surveyed step is longer than a watched one.
        ("step, own work", "ns", _most(rows, own, len(numbers)) if surveyed else None)
    ]
    for column, name in PARTS.items():
        told = bool(surveyed) or column == "exposed_comm_ns"
        found.append((name, "ns", _most(rows, rows[column], len(numbers)) if told else None))
    calls = report.collectives[["step", "rank", "message_bytes"]]
    calls = calls[calls["step"].isin(numbers)]
    whole = not watched_steps(report.tables["steps"]) or bool(surveyed)
    found.append(
        ("message bytes", "bytes", _most(calls, calls["message_bytes"], len(numbers)) if whole else None)
    )
    ones = pd.Series(1, index=calls.index)
    found.append(("collectives", None, _most(calls, ones, len(numbers)) if whole and len(numbers) else None))
    work = report.computes[["step", "flops"]]
    work = work[work["step"].isin(surveyed)]
    found.append(
        ("FLOPs, all ranks", "FLOP", float(work["flops"].sum()) / len(surveyed) if surveyed else None)
    )
    return found


def _most(rows: pd.DataFrame, values: pd.Series[float], steps: int) -> float | None:
    """Return the mean over steps of the rank where it is most; None without steps, 0 without rows."""
    if not steps:
        return None
    if rows.empty:
        return 0.0
    most = values.groupby(rows["rank"]).sum().max()
    return None if pd.isna(most) else float(most) / steps
