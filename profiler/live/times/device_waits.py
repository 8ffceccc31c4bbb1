"""Calls by which streams wait for collectives: `Work.wait`, futures, and the events between streams.

With NCCL `Work.wait` blocks no host: it makes the current stream wait. FSDP goes without it and has streams
wait for each other's events. While a session is open on a device these calls are timed there; they are put
back on exit. Objects that a process group's methods return are noted: a wait is then known to be for that
collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.profiler.live.cause.methods import METHODS
from shardtoll.profiler.live.times.device_times import DeviceTimes
from shardtoll.profiler.live.times.patches import Patches, patched

_WORK_WAITS: Final = ("wait", "synchronize", "block_current_stream")
"""Methods that make a stream wait for a collective; those that a version of torch does not have are passed
over."""


def patch_device_waits(
    times: DeviceTimes,
    is_recording: Callable[[], bool],
    *,
    event: Any = torch.cuda.Event,
    stream: Any = torch.cuda.Stream,
) -> Callable[[], None]:
    """Have every wait for a collective timed while `is_recording()`; returns what undoes that."""

    def install(patches: Patches) -> None:
        work = getattr(dist, "Work", None) if dist.is_available() else None
        for name in _WORK_WAITS if work is not None else ():
            patches.around(work, name, lambda original: _handle_wait(original, times, is_recording))
        group = getattr(dist, "ProcessGroup", None) if dist.is_available() else None
        for name in METHODS if group is not None else ():
            patches.around(group, name, lambda original: _handing_over(original, times, is_recording))
        patches.around(torch._C.Future, "wait", lambda original: _handle_wait(original, times, is_recording))
        patches.around(event, "record", lambda original: _record(original, times, is_recording))
        patches.around(event, "wait", lambda original: _event_wait(original, times, is_recording))
        patches.around(stream, "wait_event", lambda original: _wait_event(original, times, is_recording))

    return patched(install)


def _handle_wait(original: Any, times: DeviceTimes, is_recording: Callable[[], bool]) -> Callable[..., Any]:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recording():
            return original(self, *args, **kwargs)
        opened = times.guarded(times.wait_begun, None)
        try:
            return original(self, *args, **kwargs)
        finally:
            times.guarded(lambda: times.wait_ended(opened, times.owner_of(self)), None)

    return wait


def _handing_over(original: Any, times: DeviceTimes, is_recording: Callable[[], bool]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = times.count
        handle = original(*args, **kwargs)
        if is_recording() and times.count > before:
            times.guarded(lambda: times.handed_over(handle), None)
        return handle

    return call


def _record(original: Any, times: DeviceTimes, is_recording: Callable[[], bool]) -> Callable[..., Any]:
    def record(self: Any, stream: Any = None) -> Any:
        result = original(self, stream)
        if is_recording():
            times.guarded(lambda: times.event_recorded(self, stream), None)
        return result

    return record


def _event_wait(original: Any, times: DeviceTimes, is_recording: Callable[[], bool]) -> Callable[..., Any]:
    def wait(self: Any, stream: Any = None) -> Any:
        return _timed(lambda: original(self, stream), times, is_recording, self, stream)

    return wait


def _wait_event(original: Any, times: DeviceTimes, is_recording: Callable[[], bool]) -> Callable[..., Any]:
    def wait_event(self: Any, event: Any) -> Any:
        return _timed(lambda: original(self, event), times, is_recording, event, self)

    return wait_event


def _timed(
    work: Callable[[], Any],
    times: DeviceTimes,
    is_recording: Callable[[], bool],
    event: Any,
    stream: Any,
) -> Any:
    """Have one stream wait for an event; timed if that event stands for a collective."""
    owner: Any = None
    if is_recording():
        owner = times.guarded(lambda: times.stream_waits(event, stream), None)
    if owner is None:
        return work()
    opened = times.guarded(lambda: times.wait_begun(stream), None)
    try:
        return work()
    finally:
        if opened is not None:
            times.guarded(lambda: times.wait_ended(opened, owner), None)
