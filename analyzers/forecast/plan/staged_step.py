"""A step in stages, or in one: a pipeline's schedule, gradients reduced over replicas, a sharded optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardtoll.analyzers.forecast.plan.schedule import Task, schedule
from shardtoll.analyzers.replay.contention import Contention
from shardtoll.analyzers.replay.engine import simulate
from shardtoll.analyzers.replay.event_builder import Builder
from shardtoll.analyzers.replay.event_graph import Kind

_BUCKETS = 6
"""Pieces in which the last backward reduces its gradients, and the first forward gathers parameters."""


@dataclass(frozen=True, slots=True)
class StagedTimes:
    """Durations in ns of what each pipeline rank does."""

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
    reduces_beside: bool
    gathers_beside: bool
    sends_beside: bool
    forward_first: bool = False
    """Whether all forwards come before all backwards (AFAB, GPipe)."""


@dataclass(frozen=True, slots=True)
class StagedStep:
    """What came of it."""

    step_ns: float
    busy_ns: float
    """Passes of the rank that has most."""
    sends_ns: float
    """Time that the busiest rank's compute stream sends."""


def staged_step(times: StagedTimes, micro_batches: int, contention: float) -> StagedStep:
    """Return the step. Micro-batches are alike: of many a few are simulated, in the steady state of 1F1B."""
    stages, chunks = len(times.forward_ns), len(times.forward_ns[0])
    unit = stages if chunks > 1 else 1
    enough = 3 * stages if chunks == 1 else 2 * stages
    if stages == 1:
        enough = 2
    more = enough + unit
    if micro_batches <= more:
        return _simulated(times, micro_batches, contention)
    rest = (micro_batches - enough) % unit
    short = _simulated(times, enough + rest, contention)
    longer = _simulated(times, more + rest, contention)
    times_more = (micro_batches - more - rest) / unit
    return StagedStep(
        longer.step_ns + (longer.step_ns - short.step_ns) * times_more,
        longer.busy_ns + (longer.busy_ns - short.busy_ns) * times_more,
        longer.sends_ns + (longer.sends_ns - short.sends_ns) * times_more,
    )


def _simulated(times: StagedTimes, micro_batches: int, contention: float) -> StagedStep:
    builder = _Made(times, micro_batches)
    graph = builder.graph.graph()
    data = max(times.reduce_ns) + max(times.gather_ns) > 0
    beside = data and (times.reduces_beside or times.gathers_beside)
    slowed = Contention(contention, "fitted", passes=1) if beside and contention > 0 else None
    outcome = simulate(graph, contention=slowed)
    stages = len(times.forward_ns)
    busy = [micro_batches * (sum(times.forward_ns[s]) + sum(times.backward_ns[s])) for s in range(stages)]
    return StagedStep(outcome.makespan_ns, max(busy), float(np.max(builder.sent)))


class _Made:
    """The graph of one step."""

    def __init__(self, times: StagedTimes, micro_batches: int) -> None:
        self.times, self.micro_batches = times, micro_batches
        self.graph = Builder()
        self.stages, self.chunks = len(times.forward_ns), len(times.forward_ns[0])
        self.lanes = [(self.graph.lane(), self.graph.lane(), self.graph.lane()) for _ in range(self.stages)]
        self.sent = [0.0] * self.stages
        self.inputs: list[tuple[tuple[int, Task], int]] = []
        """(stage, task) that waits, and node that it waits for."""
        self.first: dict[tuple[int, Task], int] = {}
        orders = [
            schedule(self.stages, stage, self.chunks, micro_batches, all_forward_first=times.forward_first)
            for stage in range(self.stages)
        ]
        for stage, tasks in enumerate(orders):
            self._stage(stage, tasks)
        for waiting, node in self.inputs:
            self.graph.edge(node, self.first[waiting])

    def _stage(self, stage: int, tasks: list[Task]) -> None:
        times, graph = self.times, self.graph
        device, sending, wire = self.lanes[stage]
        reduced: list[int] = []
        for place, task in enumerate(tasks):
            durations = times.backward_ns if task.backward else times.forward_ns
            duration_ns = durations[stage][task.chunk]
            pieces = _BUCKETS if self._split(stage, task) else 1
            node = -1
            for piece in range(pieces):
                before = ()
                if pieces > 1 and not task.backward:
                    before = (graph.node(stage, wire, Kind.COLLECTIVE, self._part(times.gather_ns[stage])),)
                node = graph.node(stage, device, Kind.COMPUTE, duration_ns / pieces, after=before)
                if piece == 0:
                    self.first[stage, task] = node
                if pieces > 1 and task.backward:
                    part = self._part(times.reduce_ns[stage])
                    reduced.append(graph.node(stage, wire, Kind.COLLECTIVE, part, after=(node,)))
            self._send(stage, task, node, device, sending)
            if place == len(tasks) - 1:
                self._finish(stage, node, reduced, device)

    def _part(self, whole_ns: float) -> float:
        return whole_ns / self.chunks / _BUCKETS

    def _split(self, stage: int, task: Task) -> bool:
        times = self.times
        if task.backward:
            return (
                times.reduces_beside
                and task.micro_batch == self.micro_batches - 1
                and times.reduce_ns[stage] > 0
            )
        return times.gathers_beside and task.micro_batch == 0 and times.gather_ns[stage] > 0

    def _send(self, stage: int, task: Task, node: int, device: int, sending: int) -> None:
        step = -1 if task.backward else 1
        virtual = task.chunk * self.stages + stage + step
        if not 0 <= virtual < self.stages * self.chunks or self.stages == 1:
            if 0 <= virtual < self.chunks and self.stages == 1:
                self.inputs.append(((0, Task(task.backward, virtual, task.micro_batch)), node))
            if task.chunk == self.chunks - 1 and stage == self.stages - 1 and not task.backward:
                self.inputs.append(((stage, Task(True, task.chunk, task.micro_batch)), node))
            return
        lane = sending if self.times.sends_beside else device
        sent = self.graph.node(stage, lane, Kind.COPY, self.times.send_ns, after=(node,))
        if lane == device:
            self.sent[stage] += self.times.send_ns
        to = Task(task.backward, virtual // self.stages, task.micro_batch)
        self.inputs.append(((virtual % self.stages, to), sent))

    def _finish(self, stage: int, node: int, reduced: list[int], device: int) -> None:
        times, graph = self.times, self.graph
        last = node
        if not times.reduces_beside and times.reduce_ns[stage] > 0:
            last = graph.node(stage, device, Kind.COLLECTIVE, times.reduce_ns[stage], after=(node,))
        last = graph.node(
            stage, device, Kind.OPTIMIZER, times.optimizer_ns[stage], after=(last, *reduced[-1:])
        )
        if not times.gathers_beside and times.gather_ns[stage] > 0:
            graph.node(stage, device, Kind.COLLECTIVE, times.gather_ns[stage], after=(last,))
