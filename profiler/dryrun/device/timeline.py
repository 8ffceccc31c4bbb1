"""The one order of a dry run, and the streams and events that stand for those of CUDA.

Nothing runs, so an event is no time: it is a place in the order. A stream that waits for an event waits for
all that the other stream was given before that place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from shardtoll.ledger.records.dry import COMPUTE_STREAM

Waited = Callable[["int", "str | None", str, int, "int | None"], None]
"""Called with order, who waits (None: the host), for which stream, up to where, and for which collective."""


class Timeline:
    """Counts the program's work for the device, and knows the stream that gets it."""

    def __init__(self) -> None:
        self.order = 0
        self.default = DryStream(self, COMPUTE_STREAM)
        self.current = self.default
        self.on_wait: Waited | None = None
        """None while nothing is recorded."""
        self._names: dict[str, int] = {COMPUTE_STREAM: 1}

    def next(self) -> int:
        """Return the next place in the order."""
        order = self.order
        self.order += 1
        return order

    def begin(self) -> None:
        """Begin a step: its order counts from 0, and streams have been given nothing."""
        self.order = 0

    def name(self, wish: str) -> str:
        """Return a name that no other stream has."""
        count = self._names.get(wish, 0) + 1
        self._names[wish] = count
        return wish if count == 1 else f"{wish}_{count}"

    def wait(
        self, stream: str | None, for_stream: str, for_order: int, collective: int | None = None
    ) -> None:
        """Note that a stream, or with None the host, waits for what another was given before `for_order`."""
        if stream != for_stream and self.on_wait is not None:
            self.on_wait(self.next(), stream, for_stream, for_order, collective)


class DryStream:
    """Stands for torch.cuda.Stream."""

    def __init__(self, timeline: Timeline, name: str, priority: int = 0) -> None:
        self._timeline = timeline
        self.name = name
        self.priority = priority
        self.cuda_stream = id(self)
        self.stream_id = id(self)
        self.device_index = 0
        self.device_type = 1
        self._before: list[DryStream] = []

    @property
    def device(self) -> Any:
        """The device that the program takes it to be on."""
        import torch

        return torch.device("cuda", self.device_index)

    def wait_stream(self, other: DryStream) -> None:
        """Have later work of this stream wait for all that the other has been given."""
        self._timeline.wait(self.name, other.name, self._timeline.order)

    def wait_event(self, event: DryEvent) -> None:
        """Have later work of this stream wait for what the event was recorded after."""
        event.wait(self)

    def record_event(self, event: DryEvent | None = None) -> DryEvent:
        """Record an event on this stream."""
        event = DryEvent(self._timeline) if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether its work is done: always, as none is ever left."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is made: never."""
        return False

    def synchronize(self) -> None:
        """Have the host wait for it."""
        self._timeline.wait(None, self.name, self._timeline.order)

    def __enter__(self) -> DryStream:
        self._before.append(self._timeline.current)
        self._timeline.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeline.current = self._before.pop()


class DryEvent:
    """Stands for torch.cuda.Event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._at: tuple[str, int] | None = None

    def record(self, stream: DryStream | None = None) -> DryEvent:
        """Note the place of the stream, by default the current one."""
        stream = self._timeline.current if stream is None else stream
        self._at = stream.name, self._timeline.order
        return self

    def wait(self, stream: DryStream | None = None) -> None:
        """Have a stream, by default the current one, wait for it."""
        stream = self._timeline.current if stream is None else stream
        if self._at is not None:
            self._timeline.wait(stream.name, *self._at)

    def synchronize(self) -> None:
        """Have the host wait for it."""
        if self._at is not None:
            self._timeline.wait(None, *self._at)

    def query(self) -> bool:
        """Whether it has passed: always."""
        return True

    def elapsed_time(self, _: DryEvent) -> float:
        """Milliseconds to another event: 0.0, as no time passes in a dry run."""
        return 0.0


class DryStreamContext:
    """Stands for torch.cuda.stream(s); None changes nothing."""

    def __init__(self, timeline: Timeline, stream: DryStream | None) -> None:
        self._timeline = timeline
        self.stream = stream
        self._before: DryStream | None = None

    def __enter__(self) -> None:
        self._before = self._timeline.current
        if self.stream is not None:
            self._timeline.current = self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            self._timeline.current = self._before
