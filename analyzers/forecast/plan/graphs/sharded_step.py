"""A step whose parameters are sharded over replicas (FSDP, ZeRO-3): gathers and scatters overlap the
blocks."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final

from shardtoll.analyzers.forecast.plan.graphs.template import Drawn, Template
from shardtoll.analyzers.replay.events.event_graph import Kind

_UNITS: Final = (4, 7)
"""Blocks that are simulated; each more adds what the difference of these two adds for each block."""


@dataclass(frozen=True, slots=True)
class ShardedTimes:
    """Durations in ns of what a sharded step consists of."""

    embedding_ns: float
    forward_ns: float
    """One block, one micro-batch."""
    backward_ns: float
    head_ns: float
    """Output projection and loss, forward and backward."""
    gather_ns: float
    """All-gather of one block's parameters."""
    scatter_ns: float
    """Reduce-scatter of one block's gradients."""
    root_gather_ns: float
    root_scatter_ns: float
    optimizer_ns: float


_EMBED, _FORWARD, _BACKWARD, _HEAD, _GATHER, _SCATTER, _ROOT_GATHER, _ROOT_SCATTER, _OPTIMIZER = range(9)


def sharded_step_ns(
    times: ShardedTimes, layers: int, micro_batches: int, contention: float, *, regathers: bool
) -> float:
    """Return the step's time in ns. Blocks are identical, and so are micro-batches: a few are simulated.

    `regathers`: whether backward gathers parameters again, as full sharding does.
    """
    durations = astuple(times)

    def simulated(blocks: int, count: int) -> float:
        return _template(blocks, count, regathers).step_ns(durations, contention)

    def of_blocks(blocks: int) -> float:
        if micro_batches <= 2:
            return simulated(blocks, micro_batches)
        one, two = simulated(blocks, 1), simulated(blocks, 2)
        return two + (two - one) * (micro_batches - 2)

    few, more = _UNITS
    if layers <= more:
        return of_blocks(layers)
    short, longer = of_blocks(few), of_blocks(more)
    return longer + (longer - short) / (more - few) * (layers - more)


@lru_cache(maxsize=256)
def _template(layers: int, micro_batches: int, regathers: bool) -> Template:
    drawn = Drawn()
    device, wire = drawn.builder.lane(), drawn.builder.lane()

    def compute(slot: int, *after: int) -> int:
        return drawn.node(0, device, Kind.COMPUTE, slot, after=after)

    def collective(slot: int, *after: int) -> int:
        return drawn.node(0, wire, Kind.COLLECTIVE, slot, after=after)

    last = end = drawn.node(0, device, Kind.POINT, _EMBED, 0.0)
    for micro in range(micro_batches):
        gathers = regathers or micro == 0
        root = collective(_ROOT_GATHER, last) if gathers else last
        done = [compute(_EMBED, root)]
        # Two blocks are gathered ahead: the limiter of torch's FSDP keeps the third waiting.
        ready = [collective(_GATHER) if gathers else root for _ in range(min(2, layers))]
        for layer in range(layers):
            done.append(compute(_FORWARD, ready[layer]))
            if layer + 2 < layers:
                ready.append(collective(_GATHER, done[-1]) if gathers else root)
        last = compute(_HEAD)
        # Backward keeps the last block's parameters. A block's gather is issued before the block behind it.
        ready = [root, collective(_GATHER, done[-1]) if regathers and layers > 1 else root]
        for layer in range(layers):
            last = compute(_BACKWARD, ready[layer])
            if layer + 2 < layers:
                ready.append(collective(_GATHER, last) if regathers else root)
            collective(_SCATTER, last)
        end = collective(_ROOT_SCATTER, last)
    drawn.node(0, device, Kind.OPTIMIZER, _OPTIMIZER, after=(last, end))
    return drawn.template()
