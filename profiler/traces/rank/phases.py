"""The phase of an instant on a thread: from annotations, autograd's operators and Python frames.

The innermost marker wins. If nothing marks an instant of the training thread, the time of a step up to its
last backward pass is forward. Later time is neither.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.ledger.records.record import PHASES
from shardtoll.profiler.traces.collectives.stacks import Nest, covered, innermost, merged
from shardtoll.profiler.traces.file.trace_columns import I8, I64, HostWork, Trace
from shardtoll.profiler.traces.rank.facts import Facts

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    PHASES.index(name) for name in ("forward", "backward", "recompute", "optimizer", "other")
)

ENGINE: Final = "autograd::engine::evaluate_function"
FETCH: Final = re.compile(r"enumerate\(DataLoader\)|DataLoader\w*\.__next__|^#* ?data[ _]?load", re.I)
PIPELINE: Final = re.compile(r"^(Forward|Backward|Weight) \d+$|^PP:\d+\w+$")
_CHECKPOINT_NODE: Final = re.compile(rf"^{ENGINE}: .*Checkpoint")
_MARKERS: Final = (
    (FETCH, OTHER),
    (re.compile(r"^Optimizer\.(step|zero_grad)#|^#+ ?optimi[sz]er"), OPTIMIZER),
    (re.compile(r"^Backward \d|^Weight \d|^PP:\d+([BIW]\d|(SEND|RECV)_B|REDUCE)"), BACKWARD),
    (
        re.compile(r"^FSDP::(root_)?(pre|post)_backward|FullyShardedDataParallel\._p\w+_backward_hook"),
        BACKWARD,
    ),
    (re.compile(r"^#+ ?backward"), BACKWARD),
    (re.compile(r"^(Distributed|FullySharded)DataParallel\.(_pre_)?forward|^#+ ?forward"), FORWARD),
    (re.compile(r"^Forward \d|^PP:\d+(F\d|(SEND|RECV)_F)"), FORWARD),
    (re.compile(r"^FSDP::(root_)?(pre|post)_forward"), FORWARD),
)
"""Annotations that name a phase; `## forward ##` and the like are habits of users."""
_RECOMPUTE_FRAME: Final = re.compile(r"utils/checkpoint\.py\(\d+\): (recompute_fn|unpack_hook)$")
_OPEN: Final = re.compile(r"^FSDP::pre_forward")
_CLOSE: Final = re.compile(r"^FSDP::post_forward")


def matching(trace: Trace, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return, for each number in `trace.names`, whether the pattern is found in the text."""
    return np.array([pattern.search(name) is not None for name in trace.names], np.bool_)


def rows_of(work: HostWork, names: npt.NDArray[np.bool_]) -> I64:
    """Return the rows whose name was marked."""
    return np.flatnonzero(names[work.name]) if len(work.name) else np.zeros(0, np.int64)


def main_thread(trace: Trace) -> int:
    """Return the training thread: the one with marked steps, else the one with most calls or operators; -1
    for none."""
    steps = rows_of(trace.annotations, matching(trace, re.compile(r"^ProfilerStep")))
    for threads in (trace.annotations.thread[steps], trace.calls.thread, trace.ops.thread):
        if len(threads):
            return int(np.bincount(threads[threads >= 0]).argmax()) if (threads >= 0).any() else -1
    return -1


class Phases:
    """Answers for one trace."""

    def __init__(self, facts: Facts) -> None:
        trace = facts.trace
        self._steps = facts.steps
        self.main = main_thread(trace)
        self._engine = rows_of(trace.ops, matching(trace, re.compile(rf"^{ENGINE}")))
        self._engine_threads = {*trace.ops.thread[self._engine].tolist()}
        self._nests, self._phase_of = self._markers(trace)
        self._passes = self._backward_passes(trace)
        place = facts.steps.at(self._passes[0])
        self._last_ns = np.full(facts.steps.none + 1, -(2**62), np.int64)
        np.maximum.at(self._last_ns, place, self._passes[0])
        self._last_ns[facts.steps.none] = -(2**62)

    def at(self, thread: npt.NDArray[np.integer], at_ns: I64) -> I8:
        """Return the phase of each (thread, instant), as a place in `record.PHASES`."""
        phase = np.full(len(at_ns), OTHER, np.int8)
        here = np.flatnonzero(thread == self.main)
        if len(here):
            times = at_ns[here]
            before = times < self._last_ns[self._steps.at(times)]
            phase[here] = np.where(covered(*self._passes, times), BACKWARD, np.where(before, FORWARD, OTHER))
        for other in self._engine_threads - {self.main}:
            phase[thread == other] = BACKWARD
        rows = innermost(self._nests, thread, at_ns)
        marked = rows >= 0
        phase[marked] = self._phase_of[rows[marked]]
        return phase

    def named(self, thread: npt.NDArray[np.integer], at_ns: I64) -> npt.NDArray[np.bool_]:
        """Return for each (thread, instant) whether an annotation or autograd names the phase."""
        engine = np.isin(thread, sorted(self._engine_threads - {self.main}))
        named: npt.NDArray[np.bool_] = engine | (innermost(self._nests, thread, at_ns) >= 0)
        return named

    def turns(self, trace: Trace) -> I64:
        """Return the instants at which the training thread may come to another phase or annotation."""
        mine = trace.annotations.thread == self.main
        notes = (trace.annotations.start_ns[mine], trace.annotations.end_ns[mine])
        return np.unique(np.concatenate((*notes, *self._passes)))

    def _markers(self, trace: Trace) -> tuple[dict[int, Nest], I8]:
        """Return the intervals that name a phase, nested by thread, and the phase of each."""
        parts: list[tuple[I64, I64, npt.NDArray[np.integer], int]] = []
        engine = self._engine
        notes, ops = trace.annotations, trace.ops
        for pattern, phase in _MARKERS:
            names = matching(trace, pattern)
            for work in (notes, ops):
                rows = rows_of(work, names)
                parts.append((work.start_ns[rows], work.end_ns[rows], work.thread[rows], phase))
        nodes = rows_of(ops, matching(trace, _CHECKPOINT_NODE))
        frames = trace.frames
        recomputing = rows_of(frames, matching(trace, _RECOMPUTE_FRAME))
        modules = rows_of(frames, matching(trace, re.compile(r"^nn\.Module: ")))
        for thread in self._engine_threads:
            mine = engine[ops.thread[engine] == thread]
            start, end = merged(ops.start_ns[mine], ops.end_ns[mine])
            parts.append((start, end, np.full(len(start), thread), BACKWARD))
            hidden = nodes[ops.thread[nodes] == thread]
            parts += _recomputed(ops, hidden, mine, thread)
            for rows in (recomputing, modules):
                inner = rows[frames.thread[rows] == thread]
                inner = inner[covered(start, end, frames.start_ns[inner])]
                begun, ended = merged(frames.start_ns[inner], frames.end_ns[inner])
                parts.append((begun, ended, np.full(len(begun), thread), RECOMPUTE))
            begun, ended = _between(trace, thread)
            inside = covered(start, end, begun)
            parts.append((begun[inside], ended[inside], np.full(int(inside.sum()), thread), RECOMPUTE))
        starts, ends, threads = (np.concatenate([part[nth] for part in parts]) for nth in range(3))
        phases = np.concatenate([np.full(len(part[0]), part[3], np.int8) for part in parts])
        nests = {}
        for number in np.unique(threads).tolist():
            here = np.flatnonzero(threads == number)
            nests[int(number)] = Nest(starts[here], ends[here], here)
        return nests, phases

    def _backward_passes(self, trace: Trace) -> tuple[I64, I64]:
        """Return when backward ran: autograd's nodes, and gaps without work of the training thread."""
        rows = self._engine
        start, end = merged(trace.ops.start_ns[rows], trace.ops.end_ns[rows])
        if len(start) < 2:
            return start, end
        mine = trace.calls.thread == self.main
        acts = np.sort(trace.calls.start_ns[mine])
        acted = np.searchsorted(acts, start[1:]) > np.searchsorted(acts, end[:-1])
        apart = acted | (self._steps.at(start[1:]) != self._steps.at(start[:-1]))
        heads = np.concatenate(([True], apart))
        return start[heads], end[np.concatenate((np.flatnonzero(heads)[1:] - 1, [len(start) - 1]))]


def _recomputed(
    ops: HostWork, nodes: I64, engine: I64, thread: int
) -> list[tuple[I64, I64, npt.NDArray[np.integer], int]]:
    """A reentrant checkpoint's node runs the forward again, then a backward of its own inside."""
    if not len(nodes):
        return []
    start, end = merged(ops.start_ns[nodes], ops.end_ns[nodes])
    inner = engine[~np.isin(engine, nodes)]
    inner = inner[covered(start, end, ops.start_ns[inner])]
    back = merged(ops.start_ns[inner], ops.end_ns[inner])
    # Nested ones must not end before what they lie in, or a bound that both share would hide them.
    shrunk = np.maximum(end - 1, start)
    return [
        (start + 1, shrunk, np.full(len(start), thread), RECOMPUTE),
        (back[0] + 2, np.maximum(back[1] - 2, back[0] + 2), np.full(len(back[0]), thread), BACKWARD),
    ]


def _between(trace: Trace, thread: int) -> tuple[I64, I64]:
    """Return the times from FSDP's hook before a module's forward to the one after it, on one thread."""
    notes = trace.annotations
    opens, closes = (
        rows[notes.thread[rows] == thread]
        for rows in (rows_of(notes, matching(trace, pattern)) for pattern in (_OPEN, _CLOSE))
    )
    begun, ended = np.sort(notes.start_ns[opens]), np.sort(notes.end_ns[closes])
    place = np.searchsorted(ended, begun)
    closed = place < len(ended)
    return merged(begun[closed], ended[place[closed]])
