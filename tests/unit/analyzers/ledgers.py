"""Hand-made ledgers: a few records, everything else at values that no analysis minds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardtoll.ledger import (
    Collective,
    Compute,
    Count,
    DeviceOp,
    Group,
    Leadup,
    Ledger,
    Notice,
    Parameter,
    Run,
    Stall,
    Step,
    Value,
)
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.volume import wire_bytes
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_table

MS = 1_000_000
US = 1_000


def collective(**given: Any) -> Collective:
    """Return an explicit all_reduce of 1 MiB on rank 0 of group `pg`, 2 ms long, all of it exposed."""
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "group": "pg",
        "group_size": 2,
        "mesh_dim": None,
        "seq": 1,
        "op": "all_reduce",
        "dtype": "float32",
        "message_bytes": 1 << 20,
        "issue_ns": 1 * MS,
        "start_ns": 1 * MS,
        "duration_ns": 2 * MS,
        "exposed_ns": 2 * MS,
        "phase": "backward",
        "implicit": False,
    } | given
    values.setdefault("wire_bytes", wire_bytes(values["op"], values["message_bytes"], values["group_size"]))
    return Collective(**values)


def on_ranks(ranks: Iterable[int], **given: Any) -> list[Collective]:
    """Return the same collective on several ranks."""
    ranks = list(ranks)
    return [collective(rank=rank, **({"group_size": len(ranks)} | given)) for rank in ranks]


def compute(**given: Any) -> Compute:
    """Return a matmul of 1000 FLOPs on rank 0 that took 1 ms, without fingerprints."""
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "index": 0,
        "op": "aten.mm.default",
        "flops": 1000,
        "start_ns": 0,
        "duration_ns": MS,
        "phase": "forward",
        "shapes": "f32[10,10] f32[10,5]",
    } | given
    return Compute(**values)


def step(number: int = 0, rank: int = 0, **given: Any) -> Step:
    """Return a step of 100 ms: 50 compute, 40 exposed communication, 10 idle."""
    values: dict[str, Any] = {
        "step": number,
        "rank": rank,
        "start_ns": 0,
        "duration_ns": 100 * MS,
        "compute_ns": 50 * MS,
        "exposed_comm_ns": 40 * MS,
        "exposed_copy_ns": 0,
        "idle_ns": 10 * MS,
        "unattributed_ns": 0,
    } | given
    return Step(**values)


def run_of(world_size: int = 2, **given: Any) -> Run:
    """Return a whole gloo job on one host."""
    values: dict[str, Any] = {
        "world_size": world_size,
        "backend": "gloo",
        "device": "cpu",
        "torch": "2.13.0",
        "hosts": ("host",),
        "mesh": {},
        "source": "live",
        "ranks_seen": tuple(range(world_size)),
        "ranks_per_host": world_size,
    } | given
    return Run(**values)


def ledger(
    collectives: Iterable[Collective] = (),
    *,
    run: Run | None = None,
    groups: Iterable[Group] | None = None,
    steps: Iterable[Step] | None = None,
    computes: Iterable[Compute] = (),
    counts: Iterable[Count] = (),
    notices: Iterable[Notice] = (),
    findings: Iterable[Finding] = (),
    leadups: Iterable[Leadup] = (),
    stalls: Iterable[Stall] = (),
    values: Iterable[Value] = (),
    parameters: Iterable[Parameter] = (),
    device_ops: Iterable[DeviceOp] = (),
) -> Ledger:
    """Return a ledger; by default a job of two ranks with one step each and one group of all."""
    run = run or run_of()
    if groups is None:
        groups = (Group("pg", tuple(range(run.world_size))),)
    if steps is None:
        steps = [step(rank=rank) for rank in run.ranks_seen]
    tables = {
        **empty_tables(),
        "steps": to_table("steps", steps),
        "collectives": to_table("collectives", collectives),
        "computes": to_table("computes", computes),
        "counts": to_table("counts", counts),
        "notices": to_table("notices", notices),
        "leadups": to_table("leadups", leadups),
        "stalls": to_table("stalls", stalls),
        "values": to_table("values", values),
        "parameters": to_table("parameters", parameters),
        "device_ops": to_table("device_ops", device_ops),
    }
    return Ledger(run, tuple(groups), tables, tuple(findings))
