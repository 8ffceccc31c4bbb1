"""The code that a host was in while its device was idle for no reason on record, or a graph's capture.

The named frame is the deepest one that was open for most of that time. A function called a hundred times
counts with all its calls, and with the functions that it calls.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardtoll.ledger.records.stall import GRAPH_CAPTURE
from shardtoll.profiler.traces.collectives.stacks import Nest, covered, merged, nests
from shardtoll.profiler.traces.file.trace_columns import I64, Trace
from shardtoll.profiler.traces.rank.causes import line_of, source_of

_SAMPLES: Final = 64
"""Instants of a group of idle pieces that are looked at; the longest pieces have the most of them."""
_SHORTEST_NS: Final = 100_000
"""A shorter frame is no reason for the idle time looked at here, however often it was open."""
_MOST: Final = 0.5
"""Share of the instants from which a frame counts as what the host did."""


@dataclass(frozen=True, slots=True)
class Code:
    """The work of a host; None if the trace does not show it, or it did many things."""

    name: str | None = None
    """`GRAPH_CAPTURE`, or None."""
    source: str | None = None
    """The innermost line of the user's own code, as `train.py:12 (main)`."""
    library: str | None = None
    """The innermost function that line called, if it is a library's."""
    share: float = 0.0
    """Share of the idle time in which this place is known."""


class HostCode:
    """Looks up what the training thread did."""

    def __init__(self, trace: Trace, main: int) -> None:
        frames = trace.frames
        self._names = trace.names
        self._frame_name, self._begun_ns, self._ended_ns = frames.name, frames.start_ns, frames.end_ns
        lasting = (frames.thread == main) & (frames.end_ns - frames.start_ns >= _SHORTEST_NS)
        nest = nests(frames, lasting) if lasting.any() else {}
        self._nest: Nest | None = nest.get(main)
        self._captured = _captures(trace)

    def during(self, start_ns: I64, length_ns: I64, step_ns: tuple[int, int] | None = None) -> Code:
        """Return what the host did in most of these idle pieces.

        A frame that was open for the whole step, from and to `step_ns`, says nothing of its idle time.
        """
        if self._nest is None and not len(self._captured[0]):
            return Code()
        at_ns, weight = _instants(start_ns, length_ns)
        whole = float(weight.sum())
        captured = float(weight[covered(*self._captured, at_ns)].sum())
        if captured >= _MOST * whole:
            return Code(GRAPH_CAPTURE, share=captured / whole)
        if self._nest is None:
            return Code()
        return self._frame(self._nest, at_ns, weight, step_ns)

    def _frame(
        self,
        nest: Nest,
        at_ns: I64,
        weight: np.ndarray[tuple[int], np.dtype[np.float64]],
        step_ns: tuple[int, int] | None,
    ) -> Code:
        whole = float(weight.sum())
        begun, ended = self._begun_ns, self._ended_ns
        open_for: defaultdict[int, float] = defaultdict(float)
        deepest: dict[int, int] = {}
        seen: list[set[int]] = [set() for _ in at_ns]
        for depth, rows in enumerate(nest.path(at_ns)):
            telling = rows >= 0
            if step_ns is not None:
                telling &= (begun[rows] > step_ns[0]) | (ended[rows] < step_ns[1])
            for place in np.flatnonzero(telling).tolist():
                name = int(self._frame_name[rows[place]])
                if name not in seen[place]:
                    seen[place].add(name)
                    open_for[name] += float(weight[place])
                deepest[name] = max(depth, deepest.get(name, 0))
        most = [name for name, share in open_for.items() if share >= _MOST * whole]
        # One that is open as long as another but deeper was called by it.
        most.sort(key=lambda name: deepest[name], reverse=True)
        lines = [(line_of(text), source_of(text)) for text in (self._names[name] for name in most)]
        source = next((own for _, own in lines if own is not None), None)
        library = next((line for line, _ in lines if line is not None), None)
        if library is None:
            return Code()
        named = next(name for name, (line, _) in zip(most, lines, strict=True) if line is not None)
        return Code(None, source, library if library != source else None, open_for[named] / whole)


def _instants(start_ns: I64, length_ns: I64) -> tuple[I64, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return instants in the longest pieces, spread evenly, and how much time each stands for."""
    order = np.argsort(-length_ns, kind="stable")[:_SAMPLES]
    start, length = start_ns[order], length_ns[order]
    share = length / max(int(length.sum()), 1)
    times = np.maximum(1, np.floor(share * _SAMPLES)).astype(np.int64)
    piece = np.repeat(np.arange(len(order)), times)
    nth = np.arange(len(piece)) - np.repeat(np.cumsum(times) - times, times)
    step = length[piece] / times[piece]
    return (start[piece] + ((nth + 0.5) * step).astype(np.int64)), step


def _captures(trace: Trace) -> tuple[I64, I64]:
    """Return when a thread recorded launches into a graph, as disjoint intervals in order."""
    calls = trace.calls
    begins = [number for number, name in enumerate(trace.names) if "StreamBeginCapture" in name]
    ends = [number for number, name in enumerate(trace.names) if "StreamEndCapture" in name]
    starts: list[int] = []
    stops: list[int] = []
    for thread in np.unique(calls.thread[np.isin(calls.name, begins)]).tolist():
        mine = calls.thread == thread
        begun = np.sort(calls.start_ns[mine & np.isin(calls.name, begins)])
        ended = np.sort(calls.end_ns[mine & np.isin(calls.name, ends)])
        after = np.searchsorted(ended, begun)
        for at_ns, place in zip(begun.tolist(), after.tolist(), strict=True):
            if place < len(ended):
                starts.append(at_ns)
                stops.append(int(ended[place]))
    return merged(np.array(starts, np.int64), np.array(stops, np.int64))
