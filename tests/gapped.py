"""A run of one rank whose steps begin when a test says, with gaps between them."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.ledger import Report
from tests import sample_reports

MS = 1_000_000
STEP_MS = 10


def gapped(*begin_ms: int, between: int | None = None, epoch_ns: int = 0) -> Report:
    """Return steps of 10 ms that begin then, each with a collective of 3 ms 1 ms after its beginning.

    `between`: when a collective of no step begins.
    """
    report = sample_reports.report()
    steps = [
        replace(
            sample_reports.step(number, 0),
            start_ns=epoch_ns + begin * MS,
            duration_ns=STEP_MS * MS,
            compute_ns=STEP_MS * MS,
            exposed_comm_ns=0,
            exposed_copy_ns=0,
            idle_ns=0,
            unattributed_ns=0,
            capture_ns=0,
        )
        for number, begin in enumerate(begin_ms)
    ]
    begins = [(number, begin + 1) for number, begin in enumerate(begin_ms)]
    if between is not None:
        begins.append((None, between))
    calls = [
        sample_reports.collective(
            0,
            0,
            seq,
            1 << 20,
            step=number,
            wait_ns=0,
            start_ns=epoch_ns + begin * MS,
            duration_ns=3 * MS,
            exposed_ns=0,
        )
        for seq, (number, begin) in enumerate(sorted(begins, key=lambda each: each[1]))
    ]
    tables = {
        **report.tables,
        "steps": sample_reports.to_table("steps", steps),
        "collectives": sample_reports.to_table("collectives", calls),
    }
    return replace(report, tables=tables, findings=())
