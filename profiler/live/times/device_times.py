"""Device time of a step and of its waits for collectives, from events that are read after the step.

The training thread runs ahead of an accelerator, so its own clock says little about the device. A timed event
lies right before and right after each wait for a collective. It is in the compute stream, the current one
where the step begins. The two bracket nothing but the wait. Compute queued earlier lies before the first
event. The time between the two is therefore the time for which the stream stood still, the exposed time.
Nothing here blocks.

`owner` is whatever the caller uses for a collective; it comes back as it was given.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from shardtoll.profiler.live.times.device_events import Device, Event, EventPool

_T = TypeVar("_T")
_NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Results of the events of one region."""

    duration_ns: int
    """From the region's begin to its end on the compute stream, without what was excluded."""
    stalls: tuple[tuple[Any, int], ...]
    """(owner, ns for which the compute stream stood still), in order; without waits for nobody knows what."""


@dataclass(slots=True)
class _Pair:
    """Two events around something; `host_ns` is what the host took between them."""

    begun: Event
    ended: Event
    host_ns: int
    owner: Any


@dataclass(slots=True)
class RegionEvents:
    """The events of one region, kept until the device has passed them."""

    pool: EventPool
    device: Device
    stream: Hashable
    begun: Event | None
    """None if the region began inside the capture of a graph: nothing of it is timed."""
    host_blocks: Callable[[Any], bool]
    ended: Event | None = None
    waits: list[_Pair] = field(default_factory=list)
    excluded: list[_Pair] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether all events have been passed. Never blocks."""
        return self.ended is None or (not self.device.capturing() and self.ended.query())

    def wait(self) -> None:
        """Block until all events have been passed; for after the last step only."""
        if self.ended is not None:
            self.ended.synchronize()

    def read(self) -> DeviceReading | None:
        """Return the times and give the events back, once `ready`; None if nothing was timed."""
        if self.begun is None or self.ended is None:
            return None
        owned = (pair for pair in self.waits if pair.owner is not None)
        stalls = tuple((pair.owner, ns) for pair in owned if (ns := self._stall_ns(pair)))
        lost_ns = sum(_elapsed_ns(pair.begun, pair.ended) for pair in self.excluded)
        duration_ns = max(0, _elapsed_ns(self.begun, self.ended) - lost_ns)
        for pair in (*self.waits, *self.excluded):
            self.pool.give(pair.begun)
            self.pool.give(pair.ended)
        self.pool.give(self.begun)
        self.pool.give(self.ended)
        return DeviceReading(duration_ns, stalls)

    def _stall_ns(self, pair: _Pair) -> int:
        """Return the stall of one wait.

        An idle device reaches both events as the host gives them out. The time between them is then the
        host's own, some µs, unless the host itself is blocked on the collective there.
        """
        elapsed_ns = _elapsed_ns(pair.begun, pair.ended)
        return elapsed_ns if elapsed_ns > pair.host_ns or self.host_blocks(pair.owner) else 0


def _elapsed_ns(begun: Event, ended: Event) -> int:
    return max(0, round(begun.elapsed_time(ended) * _NS_PER_MS))


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait that has begun; for `DeviceTimes.wait_ended`."""

    event: Event
    begun_ns: int
    region: RegionEvents


class DeviceTimes:
    """Takes the times of one region after another. Its methods cost some µs of host time and never block.

    `host_blocks` says whether waiting for an owner blocks the host, as gloo does and NCCL does not.
    """

    def __init__(
        self,
        device: Device,
        now_ns: Callable[[], int],
        *,
        host_blocks: Callable[[Any], bool],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._device = device
        self._pool = EventPool(device)
        self._now_ns = now_ns
        self._on_failure = on_failure
        self.host_blocks = host_blocks
        self._region: RegionEvents | None = None
        self._last: Any = None
        self.count = 0
        """Collectives issued so far."""
        self._carries = 0
        self._last_on: dict[Hashable, tuple[int, Any]] = {}
        """Side stream -> the collective it waited for last, and the number of that wait."""
        self._carried: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()
        """Event -> what the stream it was recorded on carried."""
        self._handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """Handle of a collective, as torch's Work -> its owner."""
        self._depth = 0
        self._drain: tuple[Any, OpenWait | None] | None = None
        self._excluding: OpenWait | None = None

    # -- regions -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a region on the stream that is current now."""
        self._forget()
        stream = self._device.current_stream()
        begun = None
        if not self._device.capturing():
            begun = self._pool.take()
            begun.record(stream)
        self._region = RegionEvents(self._pool, self._device, stream, begun, self.host_blocks)

    def end(self) -> RegionEvents | None:
        """End the region and return its events, to be read once they are ready; None when none was begun."""
        self._suspend_drain()
        region, self._region = self._region, None
        self._forget()
        if region is None:
            return None
        if region.begun is not None and not self._device.capturing():
            region.ended = self._pool.take()
            region.ended.record(region.stream)
        return region

    def drop(self) -> None:
        """Give up the region. Its events are lost to the pool: some may not have been passed yet."""
        self._region = None
        self._forget()

    def _forget(self) -> None:
        self._last = None
        self._last_on.clear()
        self._depth = 0
        self._drain = None
        self._excluding = None

    def guarded(self, work: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `work` does with these times; a failure of it is passed to `on_failure`, never raised.

        For callers that are within the program's own calls.
        """
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            self.drop()
            self._on_failure(error)
            return otherwise

    # -- which collective is waited for ------------------------------------------------------------

    def issued(self, owner: Any) -> None:
        """Note a collective that was just issued on this thread."""
        self.count += 1
        self._last = owner

    def handed_over(self, handle: Any) -> None:
        """Note the handle that the collective issued last came back with."""
        if self._last is not None and handle is not None:
            self._handles[handle] = self._last

    def owner_of(self, handle: Any) -> Any:
        """Return whom waiting for this handle is waiting for; for an unknown one, what was issued last."""
        return self._handles.get(handle, self._last)

    def event_recorded(self, event: Any, stream: Hashable | None) -> None:
        """Note that the program recorded an event on a stream (None: the current one)."""
        carried = self._last_on.get(self._device.current_stream() if stream is None else stream)
        if carried is None:
            self._carried.pop(event, None)
        else:
            self._carried[event] = carried

    def stream_waits(self, event: Any, stream: Hashable | None) -> Any:
        """Return the collective that the compute stream waits for with an event, None if it does for none.

        `stream` is the one that waits (None: the current one). A side stream carries on what it waited for:
        whoever waits for it waits for that too. The compute stream does not: its waits are over then.
        """
        carried = self._carried.get(event)
        if carried is None or self._region is None:
            return None
        stream = self._device.current_stream() if stream is None else stream
        if stream == self._region.stream:
            return carried[1]
        carried_there = self._last_on.get(stream)
        if carried_there is None or carried_there[0] < carried[0]:
            self._last_on[stream] = carried
        return None

    # -- waits -------------------------------------------------------------------------------------

    def wait_begun(self, stream: Hashable | None = None) -> OpenWait | None:
        """Note that a stream (None: the current one) is about to wait; None if that is not to be timed.

        Not timed: other streams than the one that computes, a wait within a wait, what a graph records.
        """
        region = self._region
        if region is None or region.begun is None or self._depth or self._excluding is not None:
            return None
        if (self._device.current_stream() if stream is None else stream) != region.stream:
            return None
        if self._device.capturing():
            return None
        self._suspend_drain()
        self._depth = 1
        return self._open(region)

    def wait_ended(self, opened: OpenWait | None, owner: Any) -> None:
        """Note that the wait is in the stream, or over. `owner` None: it was for no known collective."""
        if opened is None:
            self._carry(owner)
            return
        if opened.region is not self._region:
            return
        self._depth = 0
        opened.region.waits.append(self._close(opened, owner))
        self._resume_drain()

    def _carry(self, owner: Any) -> None:
        """Note that a side stream waited: events recorded there from now on stand for the collective."""
        if owner is None or self._region is None or self._device.capturing():
            return
        stream = self._device.current_stream()
        if stream != self._region.stream:
            self._carries += 1
            self._last_on[stream] = (self._carries, owner)

    def _open(self, region: RegionEvents) -> OpenWait:
        begun_ns = self._now_ns()
        event = self._pool.take()
        event.record(region.stream)
        return OpenWait(event, begun_ns, region)

    def _close(self, opened: OpenWait, owner: Any) -> _Pair:
        ended = self._pool.take()
        ended.record(opened.region.stream)
        return _Pair(opened.event, ended, self._now_ns() - opened.begun_ns, owner)

    # -- waits inside C++, between two callbacks ------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether C++ may be waiting now: operators then call `operator_begun` and `operator_ended`."""
        return self._drain is not None

    def drain_begun(self, owner: Any) -> None:
        """Note that C++ is about to wait for collectives, and to do more, up to `drain_ended`."""
        self._suspend_drain()
        self._drain = (owner, None)
        self._resume_drain()

    def drain_ended(self) -> None:
        """Note that C++ has waited."""
        self._suspend_drain()
        self._drain = None

    def operator_begun(self) -> None:
        """Note an operator during a drain: its time is no wait."""
        self._suspend_drain()

    def operator_ended(self) -> None:
        """Note that this operator was launched: the drain goes on."""
        self._resume_drain()

    def _suspend_drain(self) -> None:
        if self._drain is None or self._drain[1] is None:
            return
        owner, opened = self._drain
        self._drain = (owner, None)
        if opened is not None and opened.region is self._region and not self._device.capturing():
            opened.region.waits.append(self._close(opened, owner))

    def _resume_drain(self) -> None:
        region = self._region
        if self._drain is None or self._drain[1] is not None or region is None or region.begun is None:
            return
        if self._device.current_stream() == region.stream and not self._device.capturing():
            self._drain = (self._drain[0], self._open(region))

    # -- what is outside the step --------------------------------------------------------------------

    def excluded_begun(self) -> None:
        """Note that the work from here up to `excluded_ended` does not belong to the region."""
        region = self._region
        if region is not None and region.begun is not None and not self._device.capturing():
            self._suspend_drain()
            self._excluding = self._open(region)

    def excluded_ended(self) -> None:
        """Note that the region goes on."""
        opened, self._excluding = self._excluding, None
        if opened is not None and opened.region is self._region:
            opened.region.excluded.append(self._close(opened, None))
            self._resume_drain()
