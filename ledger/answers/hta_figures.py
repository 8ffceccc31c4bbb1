"""Figures of Holistic Trace Analysis (HTA) for a job's traces, as records.

The records are HTA's figures, not ours: it rounds, names kinds of time and sorts kernels in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest chain of dependent work in one step of one rank, split by what bounds it."""

    rank: int
    step: int | None
    """Number of the `ProfilerStep`; None if the trace has none and the whole trace was taken."""
    length_ns: int
    """The parts' sum. Less than the step if the host did nothing that was recorded."""
    host_ns: int
    """The host's operators and runtime calls."""
    compute_ns: int
    communication_ns: int
    """Kernels whose name HTA takes for communication (`^nccl.*Kernel`)."""
    kernel_gap_ns: int
    """Gaps between kernels that follow each other on a stream."""
    launch_ns: int
    """From the call that launched a kernel to the kernel's start."""


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """Idle time between the device work of one stream, by kind."""

    rank: int
    stream: int
    host_wait_ns: int
    """The host had not launched the next kernel yet when the last one ended."""
    kernel_wait_ns: int
    """Gaps too short for another reason than the launch of back-to-back kernels."""
    other_ns: int
    """Neither: the kernel was queued and something else held it, such as an event of another stream."""


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """Kernel, copy and set launches of one rank."""

    rank: int
    count: int
    short: int
    """Device work that took less time than the call which launched it."""
    slow_calls: int
    """Launch calls that took long (HTA's limit: over 50 us)."""
    delayed: int
    """Device work that began long after its launch call returned (HTA's limit: over 100 us)."""
    median_delay_ns: int
    """From the return of the call to the start of the work."""
    most_delay_ns: int


@dataclass(frozen=True, slots=True)
class QueueLength:
    """Work launched and not started yet on one stream of one rank, over the moments of change."""

    rank: int
    stream: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class HtaFigures:
    """All that HTA was asked about a job's traces."""

    version: str
    """Version of HTA."""
    critical_paths: tuple[CriticalPath, ...] = ()
    idle: tuple[StreamIdle, ...] = ()
    launches: tuple[LaunchStats, ...] = ()
    queues: tuple[QueueLength, ...] = ()
    notices: tuple[str, ...] = ()
    """Questions that HTA could not answer, one line each."""
