"""A step in stages, or in one: a pipeline's schedule, gradients reduced over replicas, a sharded
optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from shardtoll.analyzers.forecast.plan.graphs.template import Drawn, Template
from shardtoll.analyzers.replay.events.event_graph import Kind

_BUCKETS: Final = 6
"""Pieces in which the last backward reduces its gradients, and the first forward gathers parameters."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Properties that decide the graph of a step, without times."""

    stages: int
    chunks: int
    reduces: bool
    """Whether gradients are reduced at all."""
    gathers: bool
    reduces_beside: bool
    """... during the last backward."""
    gathers_beside: bool
    sends_beside: bool
    forward_first: bool = False
    """Whether all forwards come before all backwards (AFAB, GPipe)."""


@dataclass(frozen=True, slots=True)
class StagedTimes:
    """Durations in ns of what each pipeline rank does."""

    topology: Topology
    forward_ns: tuple[tuple[float, ...], ...]
    """[stage][chunk] of one micro-batch."""
    backward_ns: tuple[tuple[float, ...], ...]
    send_ns: float
    """Activations, or their gradients, to the next stage."""
    reduce_ns: tuple[float, ...]
    """Gradients over replicas, by stage; all-reduce or reduce-scatter."""
    gather_ns: tuple[float, ...]
    """Parameters of a sharded optimizer, by stage."""
    optimizer_ns: tuple[float, ...]

    def by_slot(self) -> list[float]:
        """Return the durations in the order of `_Slots`."""
        passes = [
            time for by_stage in (self.forward_ns, self.backward_ns) for stage in by_stage for time in stage
        ]
        return [*passes, self.send_ns, *self.reduce_ns, *self.gather_ns, *self.optimizer_ns]


def staged_step_ns(times: StagedTimes, micro_batches: int, contention: float) -> float:
    """Return the step. Micro-batches are identical: a few are simulated, in the steady state of 1F1B."""
    topology = times.topology
    unit = topology.stages if topology.chunks > 1 else 1
    enough = 2 if topology.stages == 1 else 2 * topology.stages
    durations = times.by_slot()
    beside = topology.reduces_beside or topology.gathers_beside
    factor = contention if beside and (topology.reduces or topology.gathers) else 0.0

    def simulated(count: int) -> float:
        return _template(topology, count).step_ns(durations, factor)

    if micro_batches <= enough + unit:
        return simulated(micro_batches)
    rest = (micro_batches - enough) % unit
    short, longer = simulated(enough + rest), simulated(enough + unit + rest)
    return longer + (longer - short) * (micro_batches - enough - unit - rest) / unit


@lru_cache(maxsize=512)
def _template(topology: Topology, micro_batches: int) -> Template:
    return _Made(topology, micro_batches).drawn.template()


class _Made:
    """The graph of one step."""

    def __init__(self, topology: Topology, micro_batches: int) -> None:
        self.topology, self.micro_batches = topology, micro_batches
        self.drawn = Drawn()
        stages, chunks = topology.stages, topology.chunks
        self.passes = stages * chunks
        self.lanes = [tuple(self.drawn.builder.lane() for _ in range(3)) for _ in range(stages)]
        self.waits: list[tuple[tuple[int, Task], int]] = []
        """(stage, task) that waits, and the node that it waits for."""
        self.first: dict[tuple[int, Task], int] = {}
        for stage in range(stages):
            self._stage(
                stage,
                schedule(stages, stage, chunks, micro_batches, all_forward_first=topology.forward_first),
            )
        for waiting, node in self.waits:
            self.drawn.builder.edge(node, self.first[waiting])

    def _slot(self, stage: int, task: Task) -> int:
        return (self.passes if task.backward else 0) + stage * self.topology.chunks + task.chunk

    def _stage(self, stage: int, tasks: list[Task]) -> None:
        drawn, topology = self.drawn, self.topology
        device, _, wire = self.lanes[stage]
        reduced: list[int] = []
        node = -1
        for task in tasks:
            pieces = _BUCKETS if self._split(task) else 1
            part = 1 / topology.chunks / _BUCKETS
            for piece in range(pieces):
                before: tuple[int, ...] = ()
                if pieces > 1 and not task.backward:
                    slot = 2 * self.passes + 1 + topology.stages + stage
                    before = (drawn.node(stage, wire, Kind.COLLECTIVE, slot, part),)
                node = drawn.node(stage, device, Kind.COMPUTE, self._slot(stage, task), 1 / pieces, before)
                if piece == 0:
                    self.first[stage, task] = node
                if pieces > 1 and task.backward:
                    slot = 2 * self.passes + 1 + stage
                    reduced.append(drawn.node(stage, wire, Kind.COLLECTIVE, slot, part, (node,)))
            self._send(stage, task, node)
        self._finish(stage, node, reduced)

    def _split(self, task: Task) -> bool:
        topology = self.topology
        if task.backward:
            last = task.micro_batch == self.micro_batches - 1
            return topology.reduces and topology.reduces_beside and last
        return topology.gathers and topology.gathers_beside and task.micro_batch == 0

    def _send(self, stage: int, task: Task, node: int) -> None:
        topology = self.topology
        virtual = task.chunk * topology.stages + stage + (-1 if task.backward else 1)
        if virtual == self.passes and not task.backward:
            self.waits.append(((stage, Task(True, task.chunk, task.micro_batch)), node))
        if not 0 <= virtual < self.passes:
            return
        to_stage, to_chunk = virtual % topology.stages, virtual // topology.stages
        if to_stage != stage:
            device, sending, _ = self.lanes[stage]
            lane = sending if topology.sends_beside else device
            node = self.drawn.node(stage, lane, Kind.COPY, 2 * self.passes, after=(node,))
        self.waits.append(((to_stage, Task(task.backward, to_chunk, task.micro_batch)), node))

    def _finish(self, stage: int, node: int, reduced: list[int]) -> None:
        drawn, topology = self.drawn, self.topology
        device = self.lanes[stage][0]
        base = 2 * self.passes + 1
        if topology.reduces and not topology.reduces_beside:
            node = drawn.node(stage, device, Kind.COLLECTIVE, base + stage, after=(node,))
        slot = base + 2 * topology.stages + stage
        node = drawn.node(stage, device, Kind.OPTIMIZER, slot, after=(node, *reduced[-1:]))
        if topology.gathers and not topology.gathers_beside:
            drawn.node(stage, device, Kind.COLLECTIVE, base + topology.stages + stage, after=(node,))


class Task(NamedTuple):
    """One pass of one micro-batch over one chunk of a pipeline rank."""

    backward: bool
    chunk: int
    micro_batch: int


def schedule(
    stages: int, rank: int, chunks: int, micro_batches: int, *, all_forward_first: bool = False
) -> list[Task]:
    """Return the rank's tasks in order, as Megatron-LM's schedules have them (arXiv 2104.04473, figure 4)."""
    total = micro_batches * chunks
    forward = [Task(False, chunk, micro) for chunk, micro in _order(stages, chunks, micro_batches)]
    backward = [
        Task(True, chunks - 1 - chunk, micro) for chunk, micro in _order(stages, chunks, micro_batches)
    ]
    if all_forward_first:
        return [*forward, *backward]
    if chunks == 1:
        ahead = min(stages - rank - 1, total)
    else:
        ahead = min((stages - rank - 1) * 2 + (chunks - 1) * stages, total)
    tasks = forward[:ahead]
    for number in range(total - ahead):
        tasks += (forward[ahead + number], backward[number])
    return [*tasks, *backward[total - ahead :]]


def _order(stages: int, chunks: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """Yield (chunk, micro-batch): groups of as many micro-batches as there are stages pass one chunk after
    another."""
    if chunks == 1:
        yield from ((0, micro) for micro in range(micro_batches))
        return
    for first in range(0, micro_batches, stages):
        for chunk in range(chunks):
            yield from ((chunk, micro) for micro in range(first, min(first + stages, micro_batches)))
