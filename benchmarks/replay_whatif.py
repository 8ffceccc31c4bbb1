"""How long `whatif` takes on jobs of many ranks and collectives, part by part, and its memory.

    python benchmarks/replay_whatif.py 16x500 256x2000 -o FILE.json

A made-up step: each rank computes before every collective, all ranks meet at each, and one rank is slow. The
record is made in memory, so that reading traces is not in the figures. `whatif_s` is `report.whatif(gpu=1.3)`
whole: context, graph, replays for both ends of the band, the step after, its path and, of smaller jobs, its
findings. The others are its main parts by themselves, and the report before it. `_cpu_s` is time of
the process, `_s` of the clock; the machine's load stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.recorded.record_graph import recorded_graph
from shardtoll.analyzers.roofline import choose_fabric
from shardtoll.analyzers.whatif.edits.asked import Asked, asked_edits
from shardtoll.analyzers.whatif.replayed import Replayer
from shardtoll.ledger import Collective, Group, Ledger, Run, Step, analyze
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_table

US: Final = 1_000
MOVE_US: Final = 40
SLOW: Final = 1.5

Ints = npt.NDArray[np.int64]


def made(ranks: int, collectives: int) -> Ledger:
    """Return the record of one step of a job with so many ranks and collectives a rank."""
    random = np.random.default_rng(1)
    own = random.integers(20, 60, (ranks, collectives)).astype(np.int64) * US
    own[-1] = (own[-1] * SLOW).astype(np.int64)
    ends = np.cumsum(own.max(axis=0) + MOVE_US * US)
    begins = np.concatenate([[0], ends[:-1]])
    arrival = begins[None, :] + own
    lasts = ends[None, :] - arrival
    row = Collective(
        step=0,
        rank=0,
        group="all",
        group_size=ranks,
        mesh_dim=None,
        seq=0,
        op="all_reduce",
        dtype="bfloat16",
        message_bytes=1 << 20,
        wire_bytes=2 << 20,
        issue_ns=0,
        start_ns=0,
        duration_ns=0,
        exposed_ns=0,
        phase="backward",
        implicit=False,
        source="train.py:1 (step)",
    )
    collectives_of = _many(
        to_table("collectives", [row]),
        ranks * collectives,
        rank=np.repeat(np.arange(ranks), collectives),
        seq=np.tile(np.arange(collectives), ranks),
        issue_ns=arrival.reshape(-1),
        start_ns=arrival.reshape(-1),
        duration_ns=lasts.reshape(-1),
        exposed_ns=lasts.reshape(-1),
    )
    whole = int(ends[-1])
    steps = [
        Step(0, rank, 0, whole, computed, whole - computed, 0, 0, 0)
        for rank, computed in enumerate(own.sum(axis=1).tolist())
    ]
    run = Run(
        world_size=ranks,
        backend="nccl",
        device="NVIDIA H100 80GB HBM3",
        torch="2.13.0",
        hosts=tuple(f"host{number}" for number in range(max(1, ranks // 8))),
        mesh={},
        source="trace",
        ranks_seen=tuple(range(ranks)),
        ranks_per_host=min(8, ranks),
    )
    tables = {**empty_tables(), "steps": to_table("steps", steps), "collectives": collectives_of}
    return Ledger(run, (Group("all", tuple(range(ranks))),), tables)


def _many(one: pa.Table, count: int, **varying: Ints) -> pa.Table:
    """Return a table of one row with that row so many times, but for these columns."""
    columns = [
        pa.array(varying[name], field.type)
        if name in varying
        else pa.DictionaryArray.from_arrays(
            np.zeros(count, np.int32), one.column(name).combine_chunks()
        ).cast(field.type)
        if one.column(name).null_count == 0
        else pa.nulls(count, field.type)
        for name, field in zip(one.schema.names, one.schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=one.schema)


def timed(name: str, row: dict[str, Any], work: Callable[[], Any]) -> Any:
    """Return what the work brings, and put its seconds into the row."""
    cpu, clock = time.process_time(), time.monotonic()
    brought = work()
    row[f"{name}_cpu_s"] = round(time.process_time() - cpu, 2)
    row[f"{name}_s"] = round(time.monotonic() - clock, 2)
    return brought


def measured(ranks: int, collectives: int) -> dict[str, Any]:
    """Return the figures of one size."""
    row: dict[str, Any] = {"ranks": ranks, "collectives": collectives, "load_before": os.getloadavg()[0]}
    ledger = made(ranks, collectives)
    report = timed("report", row, lambda: analyze(ledger))
    context = timed("context", row, lambda: make_context(ledger, choose_fabric(ledger.run)))
    recorded = timed("graph", row, lambda: recorded_graph(context))
    assert recorded is not None
    row["nodes"] = len(recorded.graph)
    replayer = timed("replay", row, lambda: Replayer(context, recorded))
    edits = asked_edits(context, Asked(gpu=1.3))
    timed("edit", row, lambda: replayer.draft(edits).outcome())
    answer = timed("whatif", row, lambda: report.whatif(gpu=1.3))
    row |= {"before_ms": answer.before.step_ns / 1e6, "after_ms": answer.after.step_ns / 1e6}
    row["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    row["load_after"] = os.getloadavg()[0]
    return row


def main(argv: list[str] | None = None) -> None:
    """Measure the sizes given and print a row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="+", help="RANKSxCOLLECTIVES, as 256x2000")
    parser.add_argument("-o", type=Path, dest="out")
    options = parser.parse_args(argv)
    rows = []
    for size in options.sizes:
        ranks, collectives = map(int, size.split("x"))
        rows.append(measured(ranks, collectives))
        print(json.dumps(rows[-1]), flush=True)
        if options.out is not None:
            made_of = {"argv": argv or sys.argv[1:], "cores": os.cpu_count(), "rows": rows}
            options.out.write_text(json.dumps(made_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
