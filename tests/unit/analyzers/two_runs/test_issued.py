"""`compare` and `verify` count the same collectives and bytes of a step, whatever the runs are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardtoll.ledger import Count, Report, analyze
from shardtoll.ledger.tables.tables import to_records, to_table
from shardtoll.profiler.traces import read_traces
from tests.small_traces import write_job
from tests.unit.analyzers.compare_runs import CALLS, made
from tests.unit.analyzers.counted_alike import agree

MORE = (*CALLS, {**CALLS[0], "module": "head", "message_bytes": 1 << 16})


def scheduled(report: Report, watched: Report) -> Report:
    """Return the run with steps 2 and 9 surveyed and all others watched."""
    tables = dict(report.tables)
    for name in ("steps", "computes"):
        kept = [row for row in to_records(name, report.tables[name]) if row.step in (2, 9)]
        kept += [row for row in to_records(name, watched.tables[name]) if row.step not in (2, 9)]
        tables[name] = to_table(name, sorted(kept, key=lambda row: (row.step, row.rank)))
    return replace(report, tables=tables)


@pytest.mark.parametrize("kind", ["survey", "watch", "schedule", "trace", "mixed"])
def test_compare_and_verify_count_alike(kind: str):
    # One rank of two issues more: a mean over ranks is not what the busiest one does.
    runs = []
    for seed, calls in enumerate((CALLS, MORE)):
        level = {"watch": "watch", "mixed": ("survey", "watch")[seed]}.get(kind, "survey")
        source = "trace" if kind == "trace" else "live"
        run = made(seed, steps=14, calls=calls, level=level, source=source)
        if kind == "schedule":
            run = scheduled(run, made(seed, steps=14, calls=calls, level="watch"))
        mine = [
            row
            for row in to_records("collectives", run.tables["collectives"])
            if row.rank == 0 or row.seq != 3
        ]
        runs.append(replace(run, tables={**run.tables, "collectives": to_table("collectives", mine)}))
    found = agree(runs[0], runs[1])
    assert found["collectives"] == (2.5, 3.5, None, (False, False))
    assert found["message bytes"] == (2 * 2**20 + 2**21, 2 * 2**20 + 2**21 + 2**16, "bytes", (False, False))


def test_bounds_are_bounds_in_both():
    run = made(1, steps=14)
    calls = to_records("collectives", run.tables["collectives"])
    unsized = [replace(row, message_bytes=None) if row.step == 9 and row.seq == 1 else row for row in calls]
    lacks = to_table("counts", [Count(9, 0, "pg", 4, 3)])
    sizes = replace(run, tables={**run.tables, "collectives": to_table("collectives", unsized)})
    counts = replace(run, tables={**run.tables, "counts": lacks})
    assert [one[3] for one in agree(run, sizes).values()] == [(False, False), (False, True)]
    assert [one[3] for one in agree(counts, run).values()] == [(True, False), (True, False)]


def test_traces_that_were_read_are_counted_alike(tmp_path: Path):
    reports = [analyze(read_traces([str(write_job(tmp_path / name))])[0].ledger) for name in ("a", "b")]
    found = agree(reports[0], reports[1])
    assert (found["collectives"][0] or 0) > 0
