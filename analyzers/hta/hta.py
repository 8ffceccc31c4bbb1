"""Holistic Trace Analysis, for what it does well: critical path, kinds of idle time, launches, queues.

HTA is handed our events and never reads a file. Its parts that plot, print or parse are not called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, Final

import pyarrow as pa

from shardtoll.analyzers.hta.hta_trace import quiet, trace_of
from shardtoll.ledger.answers.hta_figures import (
    CriticalPath,
    HtaFigures,
    LaunchStats,
    QueueLength,
    StreamIdle,
)

NS: Final = 1
US: Final = 1000
"""Units HTA can be fed. Its critical path needs microseconds. In nanoseconds operators may end after the one
they ran in, and the call stack it builds from them is wrong. All else is exact in nanoseconds."""

KERNEL_WAIT_NS: Final = 30_000
SLOW_CALL_NS: Final = 50_000
DELAYED_NS: Final = 100_000
"""HTA's own limits, which it gives in microseconds: 30, 50 and 100."""

_BOUND_BY: Final = {
    "cpu_bound": "host_ns",
    "gpu_compute_bound": "compute_ns",
    "gpu_communication_bound": "communication_ns",
    "gpu_kernel_kernel_overhead": "kernel_gap_ns",
    "gpu_kernel_launch_overhead": "launch_ns",
}
_FAILURES: Final = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)
"""Exceptions that HTA and the pandas below it raise on traces they were not made for."""


def hta_figures(ranks: Iterable[tuple[int, pa.Table]]) -> HtaFigures:
    """Return what HTA says of each rank's events (columns as in `hta_trace`), one rank at a time.

    If it cannot answer for a rank, `notices` gets a line; the other answers are still given.
    """
    paths: list[CriticalPath] = []
    idle: list[StreamIdle] = []
    launches: list[LaunchStats] = []
    queues: list[QueueLength] = []
    notices: list[str] = []
    unsynchronised: list[int] = []
    for rank, events in ranks:
        with quiet():
            asked = _Asked(rank, notices)
            exact = asked("events", trace_of, {rank: events}, NS)
            if exact is None:
                continue
            if not exact.traces[rank]["stream"].ne(-1).any():
                notices.append(f"rank {rank}: no device work in the trace, nothing for HTA to look at")
                continue
            idle += asked("idle time", _idle, exact, rank) or []
            launches += asked("launch statistics", _launches, exact, rank) or []
            queues += asked("queue length", _queues, exact, rank) or []
            del exact
            whole = trace_of({rank: events}, US)
            steps = _steps(whole, rank)
            for place, step in enumerate(steps or [None]):
                name = "critical path" if step is None else f"critical path of step {step}"
                path = asked(name, _path, whole, rank, place, step)
                paths += path or []
            if "cuda_sync" not in whole.symbol_table.sym_index and any(p.rank == rank for p in paths):
                unsynchronised.append(rank)
    if unsynchronised:
        who = f"rank {unsynchronised[0]}" if len(unsynchronised) == 1 else f"{len(unsynchronised)} ranks"
        notices.append(f"{who}: no synchronisation events in the trace, a critical path may miss waits")
    return HtaFigures(
        version("HolisticTraceAnalysis"),
        tuple(paths),
        tuple(idle),
        tuple(launches),
        tuple(queues),
        tuple(notices),
    )


class _Asked:
    """Asks one question; a failure becomes a notice and the answer None."""

    def __init__(self, rank: int, notices: list[str]) -> None:
        self._rank = rank
        self._notices = notices

    def __call__(self, what: str, question: Callable[..., Any], *given: Any) -> Any:
        try:
            return question(*given)
        except _FAILURES as error:
            reason = next(iter(str(error).splitlines()), "") or "no reason given"
            self._notices.append(
                f"rank {self._rank}: HTA gave no {what} ({type(error).__name__}: {reason[:200]})"
            )
            return None


def _idle(trace: Any, rank: int) -> list[StreamIdle]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    rows, _ = BreakdownAnalysis.get_idle_time_breakdown(trace, KERNEL_WAIT_NS, rank, visualize=False)
    idle: dict[int, dict[str, int]] = {}
    for stream, kind, time in zip(rows["stream"], rows["idle_category"], rows["idle_time"], strict=True):
        idle.setdefault(int(stream), {})[str(kind)] = max(0, int(time))
    return [
        StreamIdle(
            rank, stream, kinds.get("host_wait", 0), kinds.get("kernel_wait", 0), kinds.get("other", 0)
        )
        for stream, kinds in sorted(idle.items())
    ]


def _launches(trace: Any, rank: int) -> list[LaunchStats]:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    rows = CudaKernelAnalysis.cuda_kernel_launch_stats(trace, [rank], visualize=False)[rank]
    if not len(rows):
        raise ValueError("it knows none of the launch calls in this trace")
    call, work, delay = rows["cpu_duration"], rows["gpu_duration"], rows["launch_delay"]
    return [
        LaunchStats(
            rank,
            count=len(rows),
            short=int((work < call).sum()),
            slow_calls=int((call > SLOW_CALL_NS).sum()),
            delayed=int((delay > DELAYED_NS).sum()),
            median_delay_ns=int(delay.median()),
            most_delay_ns=int(delay.max()),
        )
    ]


def _queues(trace: Any, rank: int) -> list[QueueLength]:
    from hta.analyzers.trace_counters import TraceCounters

    rows = TraceCounters.get_queue_length_summary(trace, [rank])
    if rows is None:
        return []
    lengths = rows["queue_length"]
    return [
        QueueLength(rank, int(stream), float(mean), int(most))
        for (_, stream), mean, most in zip(lengths.index, lengths["mean"], lengths["max"], strict=True)
    ]


def _steps(trace: Any, rank: int) -> list[int]:
    """The numbers of the host's steps in the order in which HTA counts them: that of the events."""
    frame = trace.traces[rank]
    names = trace.symbol_table.sym_table
    numbers: list[int] = []
    for name in frame["name"]:
        text = names[name]
        if "ProfilerStep" in text:
            tail = text.partition("#")[2]
            numbers.append(int(tail) if tail.isascii() and tail.isdigit() else len(numbers))
    return numbers


def _path(trace: Any, rank: int, place: int, step: int | None) -> list[CriticalPath]:
    from hta.analyzers.critical_path_analysis import CriticalPathAnalysis

    annotation = "" if step is None else "ProfilerStep"
    graph, done = CriticalPathAnalysis.critical_path_analysis(trace, rank, annotation, place)
    if not done:
        raise ValueError("it found no path")
    parts = dict.fromkeys(_BOUND_BY.values(), 0)
    rows = graph.get_critical_path_breakdown()
    for kind, time in rows.groupby("bound_by")["duration"].sum().items():
        if kind in _BOUND_BY:
            parts[_BOUND_BY[kind]] += max(0, int(time)) * US
    return [CriticalPath(rank, step, sum(parts.values()), **parts)]
