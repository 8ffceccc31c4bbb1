"""A step whose parameters are sharded over replicas (FSDP, ZeRO-3): gathers and scatters beside the blocks."""

from __future__ import annotations

from dataclasses import dataclass

from shardtoll.analyzers.forecast.plan.phases import Phases
from shardtoll.analyzers.replay.contention import Contention
from shardtoll.analyzers.replay.engine import simulate
from shardtoll.analyzers.replay.event_builder import Builder
from shardtoll.analyzers.replay.event_graph import Kind

_UNITS = (4, 7)
"""Blocks that are simulated; more add what the difference of these two adds for each block."""


@dataclass(frozen=True, slots=True)
class ShardedTimes:
    """Durations in ns of what a sharded step consists of."""

    phases: Phases
    gather_ns: float
    """All-gather of one block's parameters."""
    scatter_ns: float
    """Reduce-scatter of one block's gradients."""
    root_gather_ns: float
    root_scatter_ns: float
    regathers: bool
    """Whether backward gathers again, as full sharding does."""
    scatters_each: bool
    """Whether each micro-batch reduces its gradients."""
    optimizer_ns: float


def sharded_step_ns(times: ShardedTimes, layers: int, micro_batches: int, contention: float) -> float:
    """Return the step's time in ns. Blocks are alike, and so are micro-batches: a few are simulated."""
    few, more = _UNITS
    if layers <= more:
        return _many_micro_batches(times, layers, micro_batches, contention)
    short = _many_micro_batches(times, few, micro_batches, contention)
    longer = _many_micro_batches(times, more, micro_batches, contention)
    return longer + (longer - short) / (more - few) * (layers - more)


def _many_micro_batches(times: ShardedTimes, layers: int, micro_batches: int, contention: float) -> float:
    if micro_batches <= 3:
        return _simulated(times, layers, micro_batches, contention)
    two, three = (_simulated(times, layers, count, contention) for count in (2, 3))
    return three + (three - two) * (micro_batches - 3)


def _simulated(times: ShardedTimes, layers: int, micro_batches: int, contention: float) -> float:
    graph = Builder()
    device, wire = graph.lane(), graph.lane()
    phases = times.phases

    def compute(duration_ns: float, *after: int) -> int:
        return graph.node(0, device, Kind.COMPUTE, duration_ns, after=after)

    def collective(duration_ns: float, *after: int) -> int:
        return graph.node(0, wire, Kind.COLLECTIVE, duration_ns, after=after)

    last = compute(0.0)
    for micro in range(micro_batches):
        gathers = times.regathers or micro == 0
        root = collective(times.root_gather_ns if gathers else 0.0, last)
        done = [compute(phases.embedding.time_ns, root)]
        # Two blocks are gathered ahead: the limiter of torch's FSDP keeps the third waiting.
        ready = [collective(times.gather_ns) if gathers else root for _ in range(min(2, layers))]
        for layer in range(layers):
            done.append(compute(phases.block_forward.time_ns, ready[layer]))
            if layer + 2 < layers:
                ready.append(collective(times.gather_ns, done[-1]) if gathers else root)
        last = compute(phases.head_forward.time_ns + phases.head_backward.time_ns)
        reduces = times.scatters_each or micro == micro_batches - 1
        # Backward keeps the last block's parameters; each block's gather is issued before the block behind it.
        ready = [root, collective(times.gather_ns, done[-1]) if times.regathers and layers > 1 else root]
        for layer in range(layers):
            last = compute(phases.block_backward.time_ns, ready[layer])
            if layer + 2 <= layers:
                ready.append(
                    collective(times.gather_ns, last) if times.regathers and layer + 2 < layers else root
                )
            if reduces:
                collective(times.scatter_ns, last)
        if reduces:
            end = collective(times.root_scatter_ns, last)
    graph.node(0, device, Kind.OPTIMIZER, times.optimizer_ns, after=(last, end))
    slowed = Contention(contention, "fitted", passes=1) if contention > 0 else None
    return simulate(graph.graph(), contention=slowed).makespan_ns
