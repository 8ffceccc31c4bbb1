"""The graph of one recorded step of one rank. With its recorded times it lasts as long as was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.analyzers.forecast.rescale.inside import Sent, inside
from shardtoll.analyzers.replay.events.event_builder import Builder
from shardtoll.analyzers.replay.events.event_graph import EventGraph, Kind


def step_graph(
    sent: Sequence[Sent], start: int, duration: int
) -> tuple[EventGraph, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the graph and the nodes of compute and of collectives. With its own times it lasts `duration`.

    The last node is the end of the step, the rank's own: collectives that ended in the step come before it.
    The step did not wait for one that still ran then, and time outside the step is excluded.
    Compute is cut where a collective starts, and where one that was exposed ends: what follows waits for it.
    Time that a collective was exposed is the end of its own time; compute has none of it.
    """
    done = [index for index, each in enumerate(sent) if each.end_ns <= start + duration]
    sent = inside(sent, start, start + duration)
    builder = Builder()
    device = builder.lane()
    lanes = _Lanes(builder)
    node_of: dict[int, int] = {}
    compute: list[int] = []
    exposed = _exposed_spans(sent)
    place, now = start, 0.0
    """Recorded time up to here, from the run's zero, and replayed time, from the step's."""
    waits: list[int] = []
    for time, kind, index in _cuts(sent, start + duration):
        own = float(max(0, (time - place) - _covered(exposed, place, time)))
        node = builder.node(0, device, Kind.COMPUTE, own, after=waits)
        compute.append(node)
        now, place, waits = now + own, time, []
        at = float(time - start)
        if kind == _START:
            length = float(sent[index].duration_ns)
            lane, free = lanes.at(sent[index].group, at, at + length)
            node_of[index] = builder.node(0, lane, Kind.COLLECTIVE, length)
            # One that starts while another is waited for: compute has not come so far, nor has its lane.
            builder.edge(node, node_of[index], max(0.0, at - now) if free < at else 0.0)
        elif index >= 0:
            waits = [node_of[index]]
            now = at
    builder.node(0, device, Kind.POINT, after=[node_of[index] for index in done])
    nodes = np.array([node_of[index] for index in range(len(sent))], dtype=np.int64)
    return builder.graph(), np.array(compute, dtype=np.int64), nodes


class _Lanes:
    """Lanes of each group: as many as collectives of it ran at once, as DDP's buckets on gloo do."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._ends: dict[str, dict[int, float]] = {}

    def at(self, group: str, start: float, end: float) -> tuple[int, float]:
        """Return the lane for a collective of this time, and when that lane was free: 0 for a new one."""
        ends = self._ends.setdefault(group, {})
        free = [(over, lane) for lane, over in ends.items() if over <= start]
        before, lane = max(free) if free else (0.0, self._builder.lane())
        ends[lane] = end
        return lane, before


def _exposed_spans(sent: Sequence[Sent]) -> list[tuple[int, int]]:
    """Return when compute waited: of each collective the end of its own time."""
    spans = []
    for each in sent:
        if each.exposed_ns > 0:
            spans.append((each.end_ns - each.exposed_ns, each.end_ns))
    return _union(spans)


_END: Final = 0
_START: Final = 1
_STEP_END: Final = 2


def _cuts(sent: Sequence[Sent], end: int) -> list[tuple[int, int, int]]:
    """Return (time, kind, index of the collective; -1 for the step's end) in order, all inside the step."""
    cuts = []
    for index, each in enumerate(sent):
        cuts.append((each.start_ns, _START, index))
        if each.exposed_ns > 0:
            cuts.append((each.end_ns, _END, index))
    return [*sorted(cuts), (end, _STEP_END, -1)]


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
