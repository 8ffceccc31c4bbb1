"""Made-up runs of several steps whose times vary as real ones do: slow stretches, drift and spikes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shardtoll.ledger import Collective, Compute, Finding, Report
from shardtoll.ledger.records.stall import Stall
from shardtoll.ledger.report.report import FabricInfo
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step

MODULES = {
    "embed": 4.0,
    "layers.0.mlp": 10.0,
    "layers.1.mlp": 10.0,
    "layers.2.mlp": 10.0,
    "head": 6.0,
    "norm": 2.0,
}
"""Module -> ms per step."""
CALLS: tuple[dict[str, Any], ...] = (
    {"op": "all_reduce", "caused_by_op": "RowwiseParallel", "module": "layers.0.mlp", "phase": "forward",
     "message_bytes": 1 << 20, "source": "train.py:10 (forward)", "exposed_ns": 3 * MS},
    {"op": "all_reduce", "caused_by_op": "RowwiseParallel", "module": "layers.1.mlp", "phase": "forward",
     "message_bytes": 1 << 20, "source": "train.py:10 (forward)", "exposed_ns": 3 * MS},
    {"op": "reduce_scatter", "caused_by_op": "FSDP.reduce", "module": "head", "phase": "backward",
     "message_bytes": 1 << 22, "source": "train.py:30 (step)", "exposed_ns": 5 * MS, "mesh_dim": "dp"},
)  # fmt: skip
IDLE_MS = 5.0


def noisy(count: int, random: np.random.Generator, spread: float = 0.015, along: float = 0.6) -> np.ndarray:
    """Return factors about 1: autocorrelated (`along` from step to step), drifting, one in 30 a spike."""
    shocks = random.normal(size=count + 50) * spread * (1 - along**2) ** 0.5
    values = np.zeros(count + 50)
    for at in range(1, count + 50):
        values[at] = along * values[at - 1] + shocks[at]
    drift = random.normal() * 0.5 * spread * np.linspace(-1, 1, count)
    spikes = (random.random(count) < 1 / 30) * random.exponential(5 * spread, count)
    return 1 + values[50:] + drift + spikes


def made(
    seed: int = 0,
    *,
    steps: int = 32,
    ranks: int = 2,
    modules: Mapping[str, float] = MODULES,
    calls: tuple[dict[str, Any], ...] = CALLS,
    shapes: str = "f32[64,32] f32[32,32]",
    fetched: dict[str, Any] | None = None,
    spread: float = 0.015,
    level: str = "survey",
    source: str = "live",
    device: str = "cpu",
    speed: float = 1.0,
    findings: tuple[Finding, ...] = (),
    change: Callable[[Report], Report] = lambda report: report,
) -> Report:
    """Return a run; `speed`: all times are times that. The first two steps are twice as long.

    `fetched`: what a DataLoader gave each rank in each step, as columns of a `Stall`.
    """
    random = np.random.default_rng(seed)
    common = noisy(steps, random, spread) * speed
    common[:2] *= 2
    own = {name: common * noisy(steps, random, spread / 2) for name in (*modules, "calls", "idle")}
    rows: list[Any] = []
    computes: list[Compute] = []
    collectives: list[Collective] = []
    for number in range(steps):
        for rank in range(ranks):
            computing = exposed = 0
            for at, (name, took_ms) in enumerate(modules.items()):
                took = round(took_ms * MS * own[name][number])
                computing += took
                if level == "survey":
                    computes.append(compute(step=number, rank=rank, index=at, module=name, duration_ns=took,
                                            start_ns=number * 200 * MS + at * MS, shapes=shapes))  # fmt: skip
            for seq, call in enumerate(calls):
                took = round(call["exposed_ns"] * own["calls"][number])
                exposed += took
                times = {"exposed_ns": took, "duration_ns": took, "transfer_ns": round(0.8 * took)}
                given = {**call, **times, "start_ns": number * 200 * MS + seq * MS, "seq": seq + 1}
                collectives.append(collective(step=number, rank=rank, group_size=ranks, **given))
            idle = round(IDLE_MS * MS * own["idle"][number])
            parts = {"compute_ns": computing, "idle_ns": idle, "unattributed_ns": MS}
            if level == "watch":
                parts = {"compute_ns": 0, "idle_ns": 0, "unattributed_ns": MS + computing + idle}
            rows.append(step(number, rank, start_ns=number * 200 * MS, exposed_comm_ns=exposed, capture_ns=MS,
                             duration_ns=computing + exposed + idle + MS, level=level, **parts))  # fmt: skip
    run = run_of(ranks, source=source, device=device)
    kept = ledger(collectives, run=run, steps=rows, computes=computes)
    if fetched is not None:
        loads = [
            Stall(row.step, row.rank, "data", "DataLoader.__next__", "other", total_ns=0, lost_ns=0,
                  **{"count": 1, **fetched})
            for row in rows
        ]  # fmt: skip
        kept = replace(kept, tables={**kept.tables, "stalls": to_table("stalls", loads)})
    report = Report(kept.run, FabricInfo("none", "none"), kept.groups, kept.tables, findings)
    return change(report)


def with_run(report: Report, **given: Any) -> Report:
    """Return the report with other facts of its run."""
    return replace(report, run=replace(report.run, **given))
