"""Parts of an accelerator for timing a stream: its current stream and timed events, from a pool.

The protocols are what the rest of the capture relies on; `CudaDevice` is torch.cuda behind them.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream's work, with the time at which the device reached it."""

    def record(self, stream: Any) -> None:
        """Put the event behind all that the stream was given so far."""

    def query(self) -> bool:
        """Whether the device has reached it. Never blocks."""

    def synchronize(self) -> None:
        """Block the host until the device has reached it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the ms from this event to the other; both must have been reached."""


class Device(Protocol):
    """One accelerator as the capture uses it."""

    def current_stream(self) -> Hashable:
        """Return the stream on which this thread launches work now; equal streams compare equal."""

    def new_event(self) -> Event:
        """Return a new event that takes the time."""

    def capturing(self) -> bool:
        """Whether this thread's stream is recorded into a graph: events would become part of it."""


class CudaDevice:
    """A CUDA device of this process."""

    def __init__(self, device: torch.device) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index

    def current_stream(self) -> Hashable:
        """Return this thread's current stream of the device."""
        return torch.cuda.current_stream(self._index)

    def new_event(self) -> Event:
        """Return a CUDA event that takes the time."""
        event: Event = _unseen(torch.cuda.Event)(enable_timing=True)
        return event

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()


@cache
def _unseen(kind: Any) -> Any:
    """Return the kind of event whose `record` is C++'s own, not the one by which the program's are noted.

    A step records some of ours, and each would cost a step as much again as its recording.
    """
    base = kind.__mro__[1]
    return type(kind.__name__, (kind,), {"record": base.record}) if hasattr(base, "record") else kind


class EventPool:
    """Events to be used again: making one costs the driver some µs, and a step needs hundreds."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Event] = []

    def take(self) -> Event:
        """Return an event that nobody waits for."""
        return self._free.pop() if self._free else self._device.new_event()

    def give(self, event: Event) -> None:
        """Take back an event that has been read."""
        self._free.append(event)
