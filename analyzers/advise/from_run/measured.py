"""What a run measured beside its step: how fast its loaders delivered, and what a checkpoint cost."""

from __future__ import annotations

from typing import Any

from shardtoll.ledger import Report


def measured_beside(report: Report) -> dict[str, Any]:
    """Return the fields of `Beside` that the run measured; those it did not are missing."""
    made: dict[str, Any] = {}
    rate = loader_sequences_per_s(report)
    if rate is not None:
        made["loader_sequences_per_s"] = rate
    made.update(checkpoint_cost(report))
    return made


def checkpoint_cost(report: Report) -> dict[str, Any]:
    """Seconds that one checkpoint blocks the rank that it blocks longest, and GB/s of all ranks if known."""
    if report.run.source == "dry":
        return {}
    rows = [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "checkpoint"]
    by_rank: dict[int, list[int]] = {}
    for row in rows:
        spent = by_rank.setdefault(row["rank"], [0, 0])
        spent[0] += row["total_ns"]
        spent[1] += row["count"]
    if not by_rank:
        return {}
    blocked_ns, saves = max(by_rank.values())
    made: dict[str, Any] = {"checkpoint_blocked_s": blocked_ns / max(1, saves) / 1e9}
    written = [row["bytes"] for row in rows if row["bytes"] is not None]
    if written and len(written) == len(rows) and blocked_ns:
        made["checkpoint_gbps"] = sum(written) / blocked_ns
    return made


def loader_sequences_per_s(report: Report) -> float | None:
    """Sequences per second and node that the loaders delivered while the loop waited for them.

    A rank that fetches in its own thread, or waits for its workers, gets `samples` in the time that the fetch
    took: that is what its loader can do. None if no fetch is on record, or a dry run made it.
    """
    if report.run.source == "dry":
        return None
    rows = [row for row in report.tables["stalls"].to_pylist() if row["kind"] == "data" and row["samples"]]
    by_rank: dict[int, list[int]] = {}
    for row in rows:
        got = by_rank.setdefault(row["rank"], [0, 0])
        got[0] += row["samples"]
        got[1] += row["total_ns"]
    rates = [1e9 * samples / spent for samples, spent in by_rank.values() if spent > 0]
    if not rates:
        return None
    return sum(rates) / len(rates) * (report.run.ranks_per_host or len(rates))
