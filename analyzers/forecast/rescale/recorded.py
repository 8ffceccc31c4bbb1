"""One recorded step of one rank as a graph: its compute between collectives, and collectives on their
streams."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from shardtoll.analyzers.replay.engine import simulate
from shardtoll.analyzers.replay.event_builder import Builder
from shardtoll.analyzers.replay.event_graph import EventGraph, Kind
from shardtoll.ledger import Report, UsageError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective of the recorded step."""

    op: str
    group: str
    group_size: int
    mesh_dim: str | None
    message_bytes: int | None
    start_ns: int
    duration_ns: int
    exposed_ns: int
    wait_ns: int
    """Time that it waited for late ranks; 0 if unknown."""

    @property
    def name(self) -> str:
        """Its group in words: the mesh dimension, else the size."""
        return self.mesh_dim or f"group of {self.group_size}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step and its parts."""

    step: int
    rank: int
    duration_ns: int
    compute_ns: int
    other_ns: float
    """Idle, unattributed and copying time, as a share of what is not exposed communication: see
    `compute_share`."""
    compute_share: float
    """Share of the time between collectives in which the device computes."""
    sent: tuple[Sent, ...]
    graph: EventGraph
    compute_nodes: npt.NDArray[np.int64]
    sent_nodes: npt.NDArray[np.int64]
    """Node of each collective."""

    def step_ns(self, compute_factor: float, sent_ns: Sequence[float], other_factor: float = 1.0) -> float:
        """Return the step with other times: `compute_factor` on computing, new durations of collectives."""
        durations = self.graph.duration_ns.copy()
        factor = self.compute_share * compute_factor + (1 - self.compute_share) * other_factor
        durations[self.compute_nodes] *= factor
        durations[self.sent_nodes] = sent_ns
        return simulate(self.graph, durations).makespan_ns


def recorded_step(report: Report) -> Recorded:
    """Return the slowest rank's part of the median step, warm-up left out. UsageError if no step can be
    used."""
    steps = report.steps
    if steps.empty:
        raise UsageError("the run has no finished step", "record one whole step at least")
    first = int(steps["step"].min())
    later = steps[steps["step"] > first]
    steps = later if later["step"].nunique() >= 2 else steps
    slowest = steps.loc[steps.groupby("step")["duration_ns"].idxmax()]
    middle = statistics.median_low(slowest["duration_ns"].tolist())
    row = slowest[slowest["duration_ns"] == middle].iloc[0]
    calls = report.collectives
    calls = calls[(calls["step"] == row["step"]) & (calls["rank"] == row["rank"])]
    calls = calls[calls["start_ns"].notna() & calls["duration_ns"].notna()].sort_values("start_ns")
    sent = tuple(_sent(call) for _, call in calls.iterrows())
    start, duration = int(row["start_ns"]), int(row["duration_ns"])
    graph, compute_nodes, sent_nodes = _graph(sent, start, duration)
    between = duration - int(row["exposed_comm_ns"])
    share = min(1.0, int(row["compute_ns"]) / between) if between > 0 else 0.0
    other = max(0.0, duration - int(row["compute_ns"]) - int(row["exposed_comm_ns"]))
    return Recorded(
        int(row["step"]), int(row["rank"]), duration, int(row["compute_ns"]), other, share,
        sent, graph, compute_nodes, sent_nodes,
    )  # fmt: skip


def _sent(call: pd.Series[Any]) -> Sent:
    def number(name: str) -> int | None:
        value = call[name]
        return None if pd.isna(value) else int(value)

    return Sent(
        str(call["op"]),
        str(call["group"]),
        int(call["group_size"]),
        None if pd.isna(call["mesh_dim"]) else str(call["mesh_dim"]),
        number("message_bytes"),
        int(call["start_ns"]),
        int(call["duration_ns"]),
        number("exposed_ns") or 0,
        number("wait_ns") or 0,
    )


def _graph(
    sent: Sequence[Sent], start: int, duration: int
) -> tuple[EventGraph, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the graph and the nodes of compute and of collectives.

    Compute is cut where a collective starts, and where one that was exposed ends: what follows waits for it.
    Time that a collective was exposed is the end of its own time; compute has none of it.
    """
    end = start + duration
    tails = [
        (
            max(each.start_ns, each.start_ns + each.duration_ns - each.exposed_ns),
            each.start_ns + each.duration_ns,
        )
        for each in sent
        if each.exposed_ns > 0
    ]
    exposed = _union([(low, min(end, high)) for low, high in tails])
    starts = [(min(max(each.start_ns, start), end), 0, index) for index, each in enumerate(sent)]
    ends = [
        (min(max(each.start_ns + each.duration_ns, start), end), 1, index)
        for index, each in enumerate(sent)
        if each.exposed_ns > 0
    ]
    builder = Builder()
    device = builder.lane()
    lanes: dict[str, int] = {}
    node_of: dict[int, int] = {}
    compute: list[int] = []
    place = start
    waits: list[int] = []
    for time, is_end, index in [*sorted([*starts, *ends]), (end, 2, -1)]:
        own = (time - place) - _covered(exposed, place, time)
        node = builder.node(0, device, Kind.COMPUTE, float(max(0, own)), after=waits)
        compute.append(node)
        place, waits = time, []
        if is_end == 0:
            lane = _lane(lanes, sent[index].group, builder)
            length = float(sent[index].duration_ns)
            node_of[index] = builder.node(0, lane, Kind.COLLECTIVE, length, after=(node,))
        elif is_end == 1:
            waits = [node_of[index]]
    nodes = np.array([node_of[index] for index in range(len(sent))], dtype=np.int64)
    return builder.graph(), np.array(compute, dtype=np.int64), nodes


def _lane(lanes: dict[str, int], group: str, builder: Builder) -> int:
    if group not in lanes:
        lanes[group] = builder.lane()
    return lanes[group]


def _union(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif high > low:
            merged.append((low, high))
    return merged


def _covered(spans: Sequence[tuple[int, int]], low: int, high: int) -> int:
    return sum(max(0, min(high, b) - max(low, a)) for a, b in spans)
