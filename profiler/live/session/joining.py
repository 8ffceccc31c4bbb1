"""After the steps: a rank's trace is written into the run folder, read back and joined to its records."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from shardtoll.ledger.disk.run_files import trace_path
from shardtoll.ledger.disk.run_writer import rewrite_tables
from shardtoll.ledger.records.errors import reason
from shardtoll.ledger.records.record import Notice
from shardtoll.ledger.tables.join import join
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.live.times.tracing import Tracer, distributed_info

log = logging.getLogger("shardtoll")

_SHOWN = 5


def with_trace(ledger: Ledger, tracer: Tracer, folder: Path) -> Ledger:
    """Return this rank's ledger joined with its trace; the tables in `folder` are brought up to date.

    Whatever fails here costs the trace or the join and is a notice; the records stay as they are.
    """
    (rank,) = ledger.run.ranks_seen
    try:
        joined = _joined(ledger, tracer, trace_path(folder, rank))
    except Exception as error:  # noqa: BLE001 - the seam: a trace must not cost the records
        why = reason(error)
        log.warning("shardtoll: rank %d: the trace cannot be used (%s)", rank, why)
        joined = _noted(ledger, rank, f"the trace of rank {rank} cannot be used ({why})")
    for why in sorted(set(tracer.failed_steps.values())):
        steps = sorted(step for step, reason_given in tracer.failed_steps.items() if reason_given == why)
        more = f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
        shown = ", ".join(map(str, steps[:_SHOWN]))
        text = f"rank {rank}: {why}, these steps are not traced: {shown}{more}"
        joined = _noted(joined, rank, text)
    try:
        rewrite_tables(folder, ledger, joined)
    except OSError as error:
        log.warning("shardtoll: rank %d: joined tables cannot be written (%s)", rank, error)
    return joined


def _joined(ledger: Ledger, tracer: Tracer, path: Path) -> Ledger:
    tracer.finish()
    (rank,) = ledger.run.ranks_seen
    about = distributed_info(rank, ledger.run.world_size, ledger.run.backend, ledger.groups)
    if not tracer.write(path, about):
        return ledger
    from shardtoll.profiler.traces.collectives.kernels import load_table
    from shardtoll.profiler.traces.file.read import read_trace
    from shardtoll.profiler.traces.file.sources import TraceFile
    from shardtoll.profiler.traces.rank.rank import rank_ledger

    size = path.stat().st_size
    trace = read_trace(TraceFile(str(path), size, f"{path} {size}"))
    return join(ledger, rank_ledger(trace, load_table(None)), tracer.steps)


def _noted(ledger: Ledger, rank: int, text: str) -> Ledger:
    notices = to_table("notices", [Notice(rank, "trace-missing", text)])
    both = pa.concat_tables([ledger.tables["notices"], notices])
    return replace(ledger, tables={**ledger.tables, "notices": both})
