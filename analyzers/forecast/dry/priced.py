"""A dry run with prices: each step's time on this GPU and fabric, and the ledger filled with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import numpy as np
import pyarrow as pa

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.dry.dry_graph import DryGraph, build
from shardtoll.analyzers.forecast.dry.memory import peak_memory
from shardtoll.analyzers.forecast.dry.operators import Prices
from shardtoll.analyzers.forecast.dry.step_shares import Shares, Spans, divide
from shardtoll.analyzers.forecast.dry.tokens import tokens_of
from shardtoll.analyzers.forecast.memory.workspaces import workspace_bytes
from shardtoll.analyzers.forecast.plan.constants import Constants, fitted, widths
from shardtoll.analyzers.forecast.plan.network import FabricNetwork, Timed
from shardtoll.analyzers.replay.events.contention import Contention
from shardtoll.analyzers.replay.events.engine import simulate
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.roofline import Fabric, fabric_on_record
from shardtoll.ledger import Ledger
from shardtoll.ledger.answers.dry_step import DryStep
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.records.dry import ONLY_FIRST, DryOp, DryStorage, DryWait
from shardtoll.ledger.records.record import Collective, Compute, Step
from shardtoll.ledger.report.dry_entries import PRICE
from shardtoll.ledger.tables.tables import to_records, to_table


@dataclass(frozen=True, slots=True)
class PricedStep:
    """One step that was simulated."""

    ops: list[DryOp]
    collectives: list[Collective]
    graph: DryGraph
    outcome: Outcome
    shares: Shares
    step_ns: float

    @property
    def unpriced(self) -> Mapping[str, int]:
        """Collectives without a price by cause, counted: with any, the step's times are unknown."""
        prices = self.graph.collective_prices
        return Counter(
            _cause(row) for row, price in zip(self.collectives, prices, strict=True) if price is None
        )


def price_dry(
    ledger: Ledger,
    fabric: Fabric,
    *,
    constants: Constants | None = None,
    tokens: int | None = None,
    price_per_gpu_hour: float | None = None,
) -> tuple[Ledger, DryStep]:
    """Return the ledger of a dry run with times, and what the last step takes.

    `tokens`: of one step over all ranks, for rates; without it what embeddings looked up counts.
    Raises UsageError for an unknown GPU.
    """
    run = ledger.run
    assert run.gpu is not None, "a dry run names its GPU"
    rank = run.ranks_seen[0]
    groups = {group.name: group for group in ledger.groups}
    constants = constants or fitted()
    per_host = run.ranks_per_host or 8
    prices = Prices(run.gpu_toml or run.gpu, FabricNetwork(fabric), constants, groups, per_host)
    ops: list[DryOp] = to_records("dry_ops", ledger.tables["dry_ops"])
    rows: list[Collective] = to_records("collectives", ledger.tables["collectives"])
    waits: list[DryWait] = to_records("dry_waits", ledger.tables["dry_waits"])
    numbers = sorted({op.step for op in ops})
    steps = [
        _priced(
            [op for op in ops if op.step == number],
            [row for row in rows if row.step == number],
            [wait for wait in waits if wait.step == number],
            prices,
            rank,
        )
        for number in numbers
    ]
    tables = _filled(ledger, steps, rank)
    storages: list[DryStorage] = to_records("dry_storages", ledger.tables["dry_storages"])
    answer = _answer(ledger, fabric, steps[-1], tokens, price_per_gpu_hour)
    capacity = run.device_memory_bytes or 0
    if storages:
        used = {row.group for row in rows}
        workspace = workspace_bytes(card_of(run.gpu_toml or run.gpu).gpu.capability)
        alive = [group for group in ledger.groups if group.name in used]
        memory = peak_memory(storages, alive, capacity, workspace, run.allocator_settings)
        answer = replace(answer, memory=memory)
    return replace(ledger, tables=tables), answer


@PRICE.entry
def price_on_record(ledger: Ledger) -> tuple[Ledger, DryStep]:
    """Return what `price_dry` does on the fabric that the dry run was made for."""
    fabric = fabric_on_record(ledger.run)
    assert fabric is not None, "a dry run names its fabric"
    return price_dry(ledger, fabric)


def _priced(
    ops: list[DryOp], rows: list[Collective], waits: Sequence[DryWait], prices: Prices, rank: int
) -> PricedStep:
    graph = build(ops, rows, waits, prices, rank)
    factor = prices.constants.get("contention", prices.gpu)
    slowed = Contention(factor, "fitted", passes=1) if factor > 0 else None
    outcome = simulate(graph.builder.graph(), contention=slowed)
    end = float(outcome.end_ns[graph.end])
    copies = [node for node, op in zip(graph.op_nodes, ops, strict=True) if op.op.startswith("memcpy.")]
    compute = [node for node, op in zip(graph.op_nodes, ops, strict=True) if not op.op.startswith("memcpy.")]
    # A group of one rank sends nothing, and its collectives hide nothing.
    shares = divide(
        end, _spans(outcome, compute), _spans(outcome, graph.collective_nodes), _spans(outcome, copies)
    )
    return PricedStep(ops, rows, graph, outcome, shares, end)


def _spans(outcome: Outcome, nodes: Sequence[int]) -> Spans:
    places = np.array(nodes, dtype=np.int64)
    return (
        np.stack([outcome.start_ns[places], outcome.end_ns[places]], axis=1)
        if len(places)
        else np.zeros((0, 2))
    )


def _filled(ledger: Ledger, steps: Sequence[PricedStep], rank: int) -> dict[str, pa.Table]:
    tables = dict(ledger.tables)
    ops: list[DryOp] = []
    rows: list[Collective] = []
    computes: list[Compute] = []
    made: list[Step] = []
    since = 0
    for step in steps:
        number = step.ops[0].step
        start, end = step.outcome.start_ns, step.outcome.end_ns
        if step.unpriced:
            ops += _durations(step.ops, step.graph.prices)
            rows += _durations(step.collectives, step.graph.collective_prices)
            continue
        for op, node, price in zip(step.ops, step.graph.op_nodes, step.graph.prices, strict=True):
            begun, took = since + round(start[node]), round(end[node] - start[node])
            ops.append(
                replace(
                    op,
                    start_ns=begun,
                    duration_ns=took,
                    low_ns=round(price.low_ns),
                    high_ns=round(price.high_ns),
                )
            )
            if op.flops and op.kind in ("gemm", "grouped_gemm", "attention"):
                computes.append(_compute(ops[-1], len(computes)))
        exposed = _whole(step.shares.exposed_ns)
        for row, node, share in zip(step.collectives, step.graph.collective_nodes, exposed, strict=True):
            begun, took = since + round(start[node]), round(end[node] - start[node])
            rows.append(replace(row, issue_ns=begun, start_ns=begun, duration_ns=took, exposed_ns=int(share)))
        made.append(_step(step, number, rank, since, sum(map(int, exposed))))
        since += made[-1].duration_ns
    tables["dry_ops"] = to_table("dry_ops", ops)
    tables["collectives"] = to_table("collectives", rows)
    tables["computes"] = to_table("computes", computes)
    tables["steps"] = to_table("steps", made)
    return tables


def _durations(rows: Sequence[Any], prices: Sequence[Timed | None]) -> list[Any]:
    """Return the rows of a step with unpriced operators: their start times are unknown."""
    return [
        row if price is None else replace(row, duration_ns=round(price.expected_ns))
        for row, price in zip(rows, prices, strict=True)
    ]


def _whole(shares: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    return [round(float(share)) for share in shares]


def _step(step: PricedStep, number: int, rank: int, since: int, exposed: int) -> Step:
    compute, copies = round(step.shares.compute_ns), round(step.shares.copy_ns)
    idle = round(step.shares.idle_ns)
    return Step(number, rank, since, compute + exposed + copies + idle, compute, exposed, copies, idle, 0)


def _compute(op: DryOp, index: int) -> Compute:
    assert op.start_ns is not None
    return Compute(
        step=op.step,
        rank=op.rank,
        index=index,
        op=op.op,
        flops=op.flops,
        start_ns=op.start_ns,
        duration_ns=op.duration_ns,
        phase=op.phase,
        shapes=op.shapes or "",
        module=op.module,
        parameter=op.parameter,
        source=op.source,
        moved_bytes=op.read_bytes + op.written_bytes,
    )


def _answer(
    ledger: Ledger,
    fabric: Fabric,
    step: PricedStep,
    tokens: int | None,
    price_per_gpu_hour: float | None,
) -> DryStep:
    run = ledger.run
    assert run.gpu is not None
    unpriced = step.unpriced
    time = None if unpriced else _band(step, ledger)
    total, no_tokens = (tokens, None) if tokens is not None else tokens_of(ledger, step.ops, step.collectives)
    rate = None if total is None or time is None else time.inverse(total * 1e9 / run.world_size)
    model = sum(op.flops for op in step.ops if op.phase != "recompute")
    hardware = sum(op.flops for op in step.ops)
    dtypes = Counter[str]()
    for op in step.ops:
        dtypes[op.dtype or "float32"] += op.flops
    peak = card_of(run.gpu_toml or run.gpu).peak_tflops(dtypes.most_common(1)[0][0]) * 1e3 if model else None
    price = None
    if price_per_gpu_hour is not None and time is not None:
        price = time.scaled(price_per_gpu_hour * run.world_size / 3.6e12)
    return DryStep(
        world_size=run.world_size,
        rank=run.ranks_seen[0],
        gpu=run.gpu,
        fabric=fabric.name,
        step_ns=time,
        compute_ns=step.shares.compute_ns,
        exposed_ns=_by_cause(step),
        bubble_ns=None if any(row.op in ("send", "recv") for row in step.collectives) else 0.0,
        idle_ns=step.shares.idle_ns + step.shares.copy_ns,
        tokens=total,
        tokens_per_s_gpu=rate,
        flops=model,
        mfu=None if peak is None or time is None else time.inverse(model / peak),
        hfu=None if peak is None or time is None else time.inverse(hardware / peak),
        memory=None,
        price_per_step=price,
        price_per_billion_tokens=None if price is None or not total else price.scaled(1e9 / total),
        notes=tuple(row["text"] for row in ledger.tables["notices"].to_pylist()),
        unpriced=unpriced,
        no_tokens=no_tokens,
    )


def _band(step: PricedStep, ledger: Ledger) -> Band:
    """Return the step's time. The band of a first step reaches down to a step without what only it does.

    Steps after the first find the optimizer's state, and DDP's buckets in the order in which gradients come.
    The exposed communication that this saves or adds is unknown, so its share counts twice.
    """
    low, high = _half_width(step)
    if any(row["kind"] == ONLY_FIRST for row in ledger.tables["notices"].to_pylist()):
        exposed = float(step.shares.exposed_ns.sum()) / max(step.step_ns, 1.0)
        more = widths()["exposed"] * exposed
        low, high = low + more - log(max(1 - _once_share(step, ledger), 0.1)), high + more
    return Band(step.step_ns, step.step_ns * exp(-low), step.step_ns * exp(high))


def _once_share(step: PricedStep, ledger: Ledger) -> float:
    """Return the share of the step in which the optimizer's state is made."""
    number = step.ops[0].step
    made = {
        row["born"]
        for row in ledger.tables["dry_storages"].select(["step", "born", "category"]).to_pylist()
        if row["step"] == number and row["category"] == "optimizer"
    }
    start, end = step.outcome.start_ns, step.outcome.end_ns
    nodes = [node for node, op in zip(step.graph.op_nodes, step.ops, strict=True) if op.order in made]
    if not nodes:
        return 0.0
    return float(max(end[node] for node in nodes) - min(start[node] for node in nodes)) / step.step_ns


def _half_width(step: PricedStep) -> tuple[float, float]:
    """Return the logarithms of how far the step may be faster and slower, as for plans."""
    numbers = widths()
    whole = max(step.step_ns, 1.0)
    exposed = float(step.shares.exposed_ns.sum()) / whole
    more = numbers["host"] * step.shares.idle_ns / whole + (numbers["net"] + numbers["exposed"]) * exposed
    return numbers["faster"] + more, numbers["slower"] + more


def _by_cause(step: PricedStep) -> Mapping[str, float]:
    sums: Counter[str] = Counter()
    for row, share in zip(step.collectives, step.shares.exposed_ns, strict=True):
        sums[_cause(row)] += float(share)  # type: ignore[assignment]
    return {cause: value for cause, value in sums.most_common() if value > 0}


def _cause(row: Collective) -> str:
    return f"{row.mesh_dim or row.group} {row.op}"
