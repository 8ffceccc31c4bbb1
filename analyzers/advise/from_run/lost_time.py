"""Time of a run's step that its layout did not cause: data, checkpoints, late ranks, capture's work."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from shardtoll.ledger import Report


def lost_ns(report: Report) -> float:
    """Return how much shorter the median step would be without them, at least.

    A rank that fetches or saves makes the others wait, so what it loses is the whole step's. It may be the
    late rank too, so the larger of both counts, and never their sum.
    """
    if report.run.source == "dry":
        return 0.0
    stalled: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in report.tables["stalls"].to_pylist():
        if row["kind"] == "data":
            stalled[row["step"], row["rank"]] += row["lost_ns"]
        elif row["kind"] == "checkpoint":
            stalled[row["step"], row["rank"]] += row["total_ns"] - (row["before_ns"] or 0)
    stragglers = [each for each in report.findings if each.kind == "straggler"]
    tolls = [each.toll_ns if each.saving_ns is None else each.saving_ns for each in stragglers]
    late_ns = max((toll for toll in tolls if toll is not None), default=0)
    by_step: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in report.tables["steps"].to_pylist():
        times = (row["duration_ns"], stalled[row["step"], row["rank"]], row["capture_ns"])
        by_step[row["step"]].append(times)
    whole, rest = [], []
    for rows in by_step.values():
        took_ns, stalls, captures = (list(column) for column in zip(*rows, strict=True))
        whole.append(max(took_ns))
        rest.append(max(0, max(took_ns) - min(captures) - max(*stalls, late_ns)))
    return float(median(whole) - median(rest)) if whole else 0.0
