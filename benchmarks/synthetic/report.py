"""Makes the report of a made-up job of any size at once, to measure what shows it: page, server, filters.

Every rank goes through the same calls in the same slots of time, up to its own lateness, so that waits are
those of groups that meet: a call's transfer begins when the last rank of its group is there. Steps add up:
exposed communication is the sum over the step's calls, compute is the rest. The same arguments give the
same report. All columns are made with numpy; a million calls take about a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from shardtoll.ledger import Evidence, FabricInfo, Finding, Group, Remedy, Report, Run, Severity, Where
from shardtoll.ledger.answers.step_roofline import OpRoofline, RankRoofline, StepRoofline
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import SCHEMAS

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

TP: Final = 8
"""Ranks of a tensor-parallel group, where there are as many."""
LAYERS: Final = 24
SLOT_NS: Final = 100_000
"""Time between the starts of two calls; no call lasts as long."""
LATE_NS: Final = 20_000
"""No rank arrives later than this after the slot began, but for one that always does by as much again."""
EPOCH_NS: Final = 1_790_000_000_000_000_000
COMPUTES: Final = 8
"""Matmuls on record of each step and rank."""


@dataclass(frozen=True, slots=True)
class Site:
    """One call of the made-up program."""

    op: str
    dim: str | None
    """None: all ranks."""
    dtype: str
    message_bytes: int
    phase: str
    implicit: bool | None
    placements: tuple[str | None, str | None]
    caused_by_op: str
    module: str
    parameter: str | None
    source: str
    stream: int
    exposed: float
    """Share of its duration during which nothing else ran."""


def program() -> tuple[Site, ...]:
    """Return the calls of one pass: of every layer four, and one over all ranks."""
    calls: list[Site] = []
    for layer in range(LAYERS):
        module, size = f"layers.{layer}", 1 << (12 + layer % 12)
        attention, mlp = f"{module}.attention", f"{module}.mlp"
        shard, whole = "(Shard(1))", "(Replicate())"
        calls += [
            Site("all_gather", "dp", "bfloat16", 4 * size, "forward", False, (None, None), "FSDP.unshard",
                 mlp, f"{mlp}.w1.weight", "train.py:81 (step)", 20, 0.2),
            Site("all_gather", "tp", "bfloat16", size, "forward", True, (shard, whole), "aten.mm.default",
                 attention, f"{attention}.wq.weight", f"model.py:{40 + layer} (forward)", 24, 0.7),
            Site("all_reduce", "tp", "float32", size, "backward", None, ("(Partial(sum))", whole),
                 "aten.add.Tensor", mlp, None, f"model.py:{90 + layer} (forward)", 24, 0.9),
            Site("reduce_scatter", "dp", "float32", 8 * size, "backward", False, (None, None),
                 "FSDP.post_backward", module, None, "train.py:84 (step)", 28, 0.1),
        ]  # fmt: skip
    norm = ("aten.linalg_vector_norm.default", "", None, "train.py:90 (step)")
    last = Site("all_reduce", None, "float32", 4, "optimizer", True, (None, None), *norm, 32, 1.0)
    return (*calls, last)


SITES: Final = program()


@dataclass(frozen=True, slots=True)
class _Times:
    """All of shape (ranks, calls), in ns since the run's epoch or ns."""

    start: Ints
    wait: Ints
    transfer: Ints
    exposed: Ints


def synthetic_report(ranks: int, collectives: int, steps: int, findings: int = 12) -> Report:
    """Return a report of `ranks` ranks with `collectives` calls each, spread evenly over `steps` steps.

    `findings` is the length of its bill, at most that of `KIND_PLACES`. ValueError where there are fewer
    calls than steps.
    """
    if collectives < steps:
        raise ValueError(f"{collectives} collectives in {steps} steps")
    step = np.arange(collectives) * steps // collectives
    site = np.arange(collectives) % len(SITES)
    tp = min(TP, ranks) if ranks % min(TP, ranks) == 0 else 1
    times = _times(ranks, tp, site)
    tables = {
        **empty_tables(),
        "steps": _steps(times, step, steps),
        "collectives": _collectives(times, step, site, tp),
        "computes": _computes(ranks, steps, collectives),
    }
    run = Run(
        world_size=ranks, backend="nccl", device="NVIDIA H100 80GB HBM3", torch="2.13.0",
        hosts=tuple(f"node{host}" for host in range(-(-ranks // 8))), mesh={"dp": ranks // tp, "tp": tp},
        source="live", ranks_seen=tuple(range(ranks)), epoch_ns=EPOCH_NS, ranks_per_host=min(8, ranks),
    )  # fmt: skip
    bill = _findings(times, site, steps, findings)
    fabric = FabricInfo("made-up", "made up by benchmarks/synthetic/report.py")
    return Report(run, fabric, _groups(ranks, tp), tables, bill, None, _roofline(tables["steps"]))


def _groups(ranks: int, tp: int) -> tuple[Group, ...]:
    every = np.arange(ranks).reshape(-1, tp)
    return (
        Group("all", tuple(range(ranks)), None, "nccl"),
        *(Group(f"tp{at}", tuple(row.tolist()), "tp", "nccl") for at, row in enumerate(every)),
        *(Group(f"dp{at}", tuple(row.tolist()), "dp", "nccl") for at, row in enumerate(every.T)),
    )


def _times(ranks: int, tp: int, site: Ints) -> _Times:
    calls = len(site)
    late = np.random.default_rng(7).integers(0, LATE_NS, (ranks, calls), dtype=np.int64)
    late[ranks // 2] += LATE_NS
    start = np.arange(calls) * SLOT_NS + late
    mesh = start.reshape(ranks // tp, tp, calls)
    dim = np.array([{"dp": 0, "tp": 1, None: 2}[each.dim] for each in SITES])[site]
    last = np.where(
        dim == 0,
        mesh.max(axis=0, keepdims=True),
        np.where(dim == 1, mesh.max(axis=1, keepdims=True), mesh.max(axis=(0, 1), keepdims=True)),
    ).reshape(ranks, calls)
    size = np.array([each.message_bytes for each in SITES])
    transfer = np.broadcast_to((8_000 + 40_000 * size // size.max())[site], (ranks, calls))
    wait = last - start
    share = np.array([each.exposed for each in SITES])[site]
    return _Times(start, wait, transfer, ((wait + transfer) * share).astype(np.int64))


def _steps(times: _Times, step: Ints, steps: int) -> pa.Table:
    first = np.searchsorted(step, np.arange(steps))
    ranks = len(times.start)
    duration = np.diff([*first, len(step)]) * SLOT_NS
    exposed = np.add.reduceat(times.exposed, first, axis=1)
    idle, copies, unknown = duration // 50, duration // 100, duration // 200
    over = np.broadcast_to
    shape = (ranks, steps)
    compute = over(duration - idle - copies - unknown, shape) - exposed
    columns = {
        "step": over(np.arange(steps), shape), "rank": over(np.arange(ranks)[:, None], shape),
        "start_ns": over(first * SLOT_NS, shape), "duration_ns": over(duration, shape), "compute_ns": compute,
        "exposed_comm_ns": exposed, "exposed_copy_ns": over(copies, shape), "idle_ns": over(idle, shape),
        "unattributed_ns": over(unknown, shape), "capture_ns": np.zeros(shape, dtype=np.int64),
        "exposed_wait_ns": exposed // 2, "exposed_move_ns": exposed // 3,
        "exposed_unsplit_ns": exposed - exposed // 2 - exposed // 3, "waited_for_ns": exposed // 4,
        "compute_beyond_ns": compute - compute.min(axis=0),
    }  # fmt: skip
    rows = ranks * steps
    return _table("steps", rows, {**columns, "level": _words(["survey"], np.zeros(rows, dtype=np.int64))})


def _collectives(times: _Times, step: Ints, site: Ints, tp: int) -> pa.Table:
    ranks, calls = times.start.shape
    rank = np.repeat(np.arange(ranks), calls)
    place = np.tile(site, ranks)
    dim = np.array([["dp", "tp", None].index(each.dim) for each in SITES])[place]
    names = [*(f"dp{at}" for at in range(tp)), *(f"tp{at}" for at in range(ranks // tp)), "all"]
    group = np.where(dim == 0, rank % tp, np.where(dim == 1, tp + rank // tp, len(names) - 1))
    size = np.array([ranks // tp, tp, ranks])[dim]
    match = group * calls + np.tile(np.arange(calls), ranks)
    late = np.zeros(int(match.max()) + 1, dtype=np.int64)
    late[match[times.wait.reshape(-1) == 0]] = rank[times.wait.reshape(-1) == 0]
    message = np.array([each.message_bytes for each in SITES])[place]
    transfer = times.transfer.reshape(-1)
    busbw = message / transfer * np.maximum(size - 1, 0) / size

    def word(name: str, of: str | None = None) -> pa.Array:
        return _words([getattr(each, of or name) for each in SITES], place)

    columns: dict[str, Any] = {
        "step": np.tile(step, ranks), "rank": rank, "group": _words(names, group), "group_size": size,
        "mesh_dim": word("mesh_dim", "dim"), "seq": np.tile(np.arange(calls), ranks), "op": word("op"),
        "dtype": word("dtype"), "message_bytes": message, "wire_bytes": message * (size - 1) // size,
        "issue_ns": times.start - 5_000, "start_ns": times.start, "duration_ns": times.wait + times.transfer,
        "exposed_ns": times.exposed, "phase": word("phase"), "implicit": word("implicit"),
        "placements_from": _words([each.placements[0] for each in SITES], place),
        "placements_to": _words([each.placements[1] for each in SITES], place),
        "caused_by_op": word("caused_by_op"), "module": word("module"), "parameter": word("parameter"),
        "source": word("source"), "wait_ns": times.wait, "transfer_ns": times.transfer, "busbw_gbps": busbw,
        "floor_ns": transfer * 3 // 4, "stream": np.array([each.stream for each in SITES])[place],
        "light_ns": transfer // 2, "group_id": group, "match_id": match, "late_rank": late[match],
        "late_ns": np.full(len(rank), LATE_NS // 2),
        "waited_ns": np.maximum(times.exposed.reshape(-1) - transfer, 0),
    }  # fmt: skip
    return _table("collectives", ranks * calls, columns)


def _computes(ranks: int, steps: int, collectives: int) -> pa.Table:
    shape = (ranks, steps, COMPUTES)
    rows = int(np.prod(shape))
    index = np.broadcast_to(np.arange(COMPUTES), shape).reshape(-1)
    rank = np.broadcast_to(np.arange(ranks)[:, None, None], shape).reshape(-1)
    step = np.broadcast_to(np.arange(steps)[:, None], shape).reshape(-1)
    start = step * (collectives // steps) * SLOT_NS + index * SLOT_NS
    layer = [f"layers.{at}.mlp" for at in range(COMPUTES)]
    one = np.zeros(rows, dtype=np.int64)
    columns: dict[str, Any] = {
        "step": step, "rank": rank, "index": index, "op": _words(["aten.mm.default"], one),
        "flops": np.full(rows, 1 << 30), "start_ns": start, "duration_ns": np.full(rows, SLOT_NS // 2),
        "phase": _words(["forward"], one), "shapes": _words(["bf16[1024,512] bf16[512,1024]"], one),
        "module": _words(layer, index), "source": _words(["model.py:70 (forward)"], one),
        # Half of them are computed alike by all ranks of a tensor-parallel group.
        "replicated_over": _words([None, "tp"], index % 2),
        "input_hash": step * COMPUTES + index + 1, "output_hash": step * COMPUTES + index + 1,
        "constant": pa.repeat(False, rows), "moved_bytes": np.full(rows, 1 << 20),
    }  # fmt: skip
    return _table("computes", rows, columns)


def _words(words: list[Any], places: Ints) -> pa.Array:
    """The words at those places, as a plain column."""
    return pa.array(words).take(pa.array(places))


def _table(name: str, rows: int, columns: dict[str, Any]) -> pa.Table:
    """The table with those columns, each of `rows` values in whatever shape; all others unknown."""
    arrays = []
    for item in SCHEMAS[name]:
        values = columns.get(item.name)
        if values is None:
            values = pa.nulls(rows, item.type)
        elif isinstance(values, np.ndarray):
            values = pa.array(values.reshape(-1))
        arrays.append(values.cast(item.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])


KIND_PLACES: Final[tuple[tuple[str, Severity, int | None], ...]] = (
    ("wrong-gradient", "error", None),
    ("implicit-redistribute", "warning", 1),
    ("exposed-communication", "warning", 2),
    ("redundant-collective", "warning", 5),
    ("latency-bound", "warning", 6),
    ("straggler", "warning", None),
    ("below-roofline", "warning", 3),
    ("cross-node-traffic", "warning", 0),
    ("wide-dtype", "warning", 10),
    ("duplicated-compute", "warning", None),
    ("recompute", "info", None),
    ("data-stall", "info", None),
    ("host-sync", "info", None),
    ("serialized-collectives", "info", 7),
    ("unattributed-time", "info", None),
    ("incomplete-input", "info", None),
)
"""Kind, severity and, where it speaks of one call of the program, which."""


def _findings(times: _Times, site: Ints, steps: int, most: int) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for kind, severity, at in KIND_PLACES[:most]:
        where, toll, ranks = Where(module=f"layers.{len(found)}.mlp"), len(found) * 1_000, range(1)
        if at is not None:
            each, mine = SITES[at], times.exposed[:, site == at]
            toll = int(mine.sum(axis=1).max()) // steps if mine.size else 0
            where = Where(each.phase, each.module, each.parameter, each.op, each.source, None, each.dim)
            ranks = range(len(times.exposed))
        if kind == "straggler":
            where, ranks = Where(), range(len(times.exposed) // 2, len(times.exposed) // 2 + 1)
        title = f"{kind} number {len(found) + 1} of a made-up job"
        found.append(
            Finding(
                kind, severity, title, toll, toll // 3, toll // 2, 1 << 20, 4, tuple(ranks), where,
                (Evidence("calls per step", 4), Evidence("toll", toll, "ns")),
                Remedy("Change nothing: this job is made up.", "pass", "the same step without it"),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda each: (each.severity != "error", -(each.toll_ns or 0))))


def _roofline(steps: pa.Table) -> StepRoofline:
    means = steps.group_by("rank").aggregate([("duration_ns", "mean"), ("exposed_comm_ns", "mean")])
    bounds = []
    for row in means.to_pylist():
        took, exposed = int(row["duration_ns_mean"]), int(row["exposed_comm_ns_mean"])
        parts = {"compute_light_ns": took // 4, "compute_floor_ns": took // 3, "comm_light_ns": took // 8}
        parts |= {"comm_floor_ns": took // 6, "light_ns": took // 4, "best_overlap_ns": took // 3}
        bounds.append(RankRoofline(row["rank"], 1, took, exposed, flops=1 << 33, hfu=0.4, mfu=0.3, **parts))
    ops = tuple(
        OpRoofline(f"aten.mm.{at}", "bfloat16", "bf16[1024,512] bf16[512,1024]", 8.0, 1 << 30, 1 << 20,
                   1024.0, 2_000_000 + at, 500.0 - at, 1_500_000, "compute")
        for at in range(40)
    )  # fmt: skip
    return StepRoofline("H100 SXM", None, {"bfloat16": 989.0}, 3350.0, 700.0, tuple(bounds), ops)
