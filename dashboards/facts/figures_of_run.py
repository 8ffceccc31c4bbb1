"""The few numbers of a report that one follows over many runs: for Prometheus and experiment trackers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.dashboards.facts import step_times, summary
from shardtoll.ledger import Report

NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Traffic:
    """One op of one group, per step, summed over the ranks seen."""

    group: str
    op: str
    calls: float
    wire_bytes: float | None
    """None if it is unknown for every call."""
    sizeless: float
    """Calls of unknown size, which are not in the bytes."""


def seconds(ns: float | None) -> float | None:
    """Return ns as s."""
    return None if ns is None else ns / NS


def tolls(report: Report) -> dict[str, float]:
    """Return kind -> toll per step of its most expensive finding, in s. Kinds without a known toll are left
    out.

    The findings of a kind may cost most on different ranks: their sum would be nobody's time.
    """
    dearest: dict[str, float] = {}
    for finding in report.findings:
        if finding.toll_ns is not None:
            dearest[finding.kind] = max(dearest.get(finding.kind, 0.0), finding.toll_ns / NS)
    return dearest


def counts(report: Report) -> dict[tuple[str, str], int]:
    """Return (kind, severity) -> how many findings there are."""
    count_of: dict[tuple[str, str], int] = {}
    for finding in report.findings:
        count_of[finding.kind, finding.severity] = count_of.get((finding.kind, finding.severity), 0) + 1
    return count_of


def parts(time: step_times.RankTime) -> dict[str, float | None]:
    """Return name -> ns of each part of a rank's mean step; None if unknown, as is one known as a bound
    only."""
    # In watched steps the missing time of one part is in the other.
    bounds = step_times.WATCHED_PARTS if time.comm_at_least and None in time.parts_ns else ()
    named = zip((name for name, _ in step_times.PARTS), time.parts_ns, strict=True)
    return {name: None if name in bounds else value for name, value in named}


def exposed_ratio(report: Report) -> float | None:
    """Return the share of the slowest rank's mean step in which it stood still for communication.

    None if only a lower bound is known: next to the numbers of other runs it would look too small.
    """
    time = step_times.slowest(step_times.rank_times(report))
    if time is None:
        return None
    if time.watched_ns and time.watched_comm_ns is not None:
        return None if time.comm_at_least else time.watched_comm_ns / time.watched_ns
    exposed = parts(time)["exposed_comm_ns"]
    return None if exposed is None or time.total_ns <= 0 else exposed / time.total_ns


def traffic(report: Report) -> list[Traffic]:
    """Return every group and op, that of most bytes first; over steps alone, as a mean of them."""
    steps = summary.step_count(report)
    table = report.tables["collectives"]
    table = table.filter(pc.is_in(table.column("step"), report.tables["steps"].column("step").unique()))
    if not steps or not table.num_rows:
        return []
    rows = (
        table.group_by(["group", "op"])
        .aggregate([("wire_bytes", "sum"), ("wire_bytes", "count"), ([], "count_all")])
        .to_pylist()
    )
    amounts = [
        Traffic(
            row["group"],
            row["op"],
            row["count_all"] / steps,
            row["wire_bytes_sum"] / steps if row["wire_bytes_count"] else None,
            (row["count_all"] - row["wire_bytes_count"]) / steps,
        )
        for row in rows
    ]
    return sorted(amounts, key=lambda amount: (-(amount.wire_bytes or 0), amount.group, amount.op))


def scalars(report: Report) -> dict[str, float]:
    """Return name -> number, in s, bytes and shares; unknown ones are left out."""
    figures: dict[str, float | None] = {f"toll_seconds/{kind}": toll for kind, toll in tolls(report).items()}
    for (kind, _), count in counts(report).items():
        figures[f"findings/{kind}"] = (figures.get(f"findings/{kind}") or 0) + count
    for severity in ("error", "warning", "info"):
        figures[f"severity/{severity}"] = sum(finding.severity == severity for finding in report.findings)
    time = step_times.slowest(step_times.rank_times(report))
    if time is not None:
        figures["step_seconds/total"] = seconds(time.step_ns)
        for name, value in parts(time).items():
            figures[f"step_seconds/{name.removesuffix('_ns')}"] = seconds(value)
    figures["exposed_ratio"] = exposed_ratio(report)
    figures |= _of_busiest_rank(report)
    return {name: float(value) for name, value in figures.items() if value is not None}


def _of_busiest_rank(report: Report) -> dict[str, float | None]:
    """Return calls and bytes per step, each of the rank that has most; bytes only if all sizes are known."""
    steps = summary.step_count(report)
    table = report.tables["collectives"]
    if not steps or not table.num_rows:
        return {}
    table = table.filter(pc.is_in(table.column("step"), report.tables["steps"].column("step").unique()))
    wanted = ("wire_bytes", "message_bytes")
    sums = table.group_by("rank").aggregate([(name, "sum") for name in wanted] + [([], "count_all")])
    most_of: dict[str, float | None] = {"collectives": _most(sums.column("count_all"), steps)}
    for name in wanted:
        whole = not table.column(name).null_count
        most_of[name] = _most(sums.column(f"{name}_sum"), steps) if whole else None
    return most_of


def _most(column: pa.ChunkedArray, steps: int) -> float | None:
    most = pc.max(column).as_py()
    return None if most is None else most / steps
