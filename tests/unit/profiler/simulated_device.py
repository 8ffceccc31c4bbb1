"""A device in miniature: streams that work through what they were given, a host clock that the test moves.

An event passes when its stream has done all before it, and never before the host gave it out. Nothing here
knows of the capture: tests compute what they expect from the same rules by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

US = 1_000


@dataclass
class Host:
    now: int = 0
    """ns."""
    blocked: int = 0
    """Times the host was made to wait for the device."""
    streams: list[Stream] = field(default_factory=list)
    current: Stream | None = None
    graph: bool = False
    made: int = 0
    """Events made by the capture."""

    def now_ns(self) -> int:
        return self.now


@dataclass(eq=False)
class Stream:
    host: Host
    done_at: int = 0

    def work(self, ns: int) -> None:
        self.done_at = max(self.done_at, self.host.now) + ns

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        event = Event(self.host)
        event.record(self)
        return event


@dataclass(eq=False)
class Event:
    host: Host
    at: int | None = None

    def record(self, stream: Any = None) -> None:
        chosen = self.host.current if stream is None else stream
        chosen.done_at = max(chosen.done_at, self.host.now)
        self.at = chosen.done_at

    def wait(self, stream: Any = None) -> None:
        chosen = self.host.current if stream is None else stream
        chosen.done_at = max(chosen.done_at, self.host.now, self.at or 0)

    def query(self) -> bool:
        return self.at is None or self.at <= self.host.now

    def synchronize(self) -> None:
        self.host.blocked += 1
        self.host.now = max(self.host.now, self.at or 0)

    def elapsed_time(self, end_event: Event) -> float:
        assert self.at is not None
        assert end_event.at is not None
        assert end_event.query(), "read before the device has passed it"
        return (end_event.at - self.at) / 1e6


class SimulatedDevice:
    def __init__(self) -> None:
        self.host = Host()
        self.compute = Stream(self.host)
        self.host.current = self.compute

    def current_stream(self) -> Stream:
        assert self.host.current is not None
        return self.host.current

    def new_event(self) -> Event:
        self.host.made += 1
        return Event(self.host)

    def capturing(self) -> bool:
        return self.host.graph

    def on(self, stream: Stream) -> On:
        return On(self.host, stream)


class On:
    """Another stream is the current one for a while."""

    def __init__(self, host: Host, stream: Stream) -> None:
        self._host, self._stream = host, stream

    def __enter__(self) -> None:
        self._before, self._host.current = self._host.current, self._stream

    def __exit__(self, *_: object) -> None:
        self._host.current = self._before
