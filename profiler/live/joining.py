"""After the steps: a rank's trace is written into the run folder, read back and joined to its records."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from shardtoll.ledger.join import join
from shardtoll.ledger.ledger import Ledger
from shardtoll.ledger.record import Notice
from shardtoll.ledger.store import rewrite_tables, trace_path
from shardtoll.ledger.tables import to_table
from shardtoll.profiler.live.failures import reason
from shardtoll.profiler.live.tracing import Tracer, distributed_info

log = logging.getLogger("shardtoll")

_SHOWN = 5


def with_trace(own: Ledger, tracer: Tracer, folder: Path) -> Ledger:
    """Return this rank's ledger joined with its trace; the tables in `folder` are brought up to date.

    Whatever fails here costs the trace or the join and is a notice; the records stay as they are.
    """
    (rank,) = own.run.ranks_seen
    try:
        joined = _joined(own, tracer, trace_path(folder, rank))
    except Exception as error:  # noqa: BLE001 - the seam: a trace must not cost the records
        why = reason(error)
        log.warning("shardtoll: rank %d: the trace cannot be used (%s)", rank, why)
        joined = _noted(own, rank, f"the trace of rank {rank} cannot be used ({why})")
    for why in sorted(set(tracer.failed_steps.values())):
        steps = sorted(step for step, told in tracer.failed_steps.items() if told == why)
        more = f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
        shown = ", ".join(map(str, steps[:_SHOWN]))
        text = f"rank {rank}: {why}, these steps are not traced: {shown}{more}"
        joined = _noted(joined, rank, text)
    try:
        rewrite_tables(folder, own, joined)
    except OSError as error:
        log.warning("shardtoll: rank %d: joined tables cannot be written (%s)", rank, error)
    return joined


def _joined(own: Ledger, tracer: Tracer, path: Path) -> Ledger:
    tracer.finish()
    (rank,) = own.run.ranks_seen
    about = distributed_info(rank, own.run.world_size, own.run.backend, own.groups)
    if not tracer.write(path, about):
        return own
    from shardtoll.profiler.traces.kernels import load_table
    from shardtoll.profiler.traces.rank import rank_ledger
    from shardtoll.profiler.traces.read import read_trace
    from shardtoll.profiler.traces.sources import TraceFile

    size = path.stat().st_size
    trace = read_trace(TraceFile(str(path), size, f"{path} {size}"))
    return join(own, rank_ledger(trace, load_table(None)), tracer.steps)


def _noted(ledger: Ledger, rank: int, text: str) -> Ledger:
    notices = to_table("notices", [Notice(rank, "trace-missing", text)])
    both = pa.concat_tables([ledger.tables["notices"], notices])
    return replace(ledger, tables={**ledger.tables, "notices": both})
