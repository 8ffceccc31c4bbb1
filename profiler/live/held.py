"""Regions whose rows wait for the device: made once it has passed the region's events, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardtoll.ledger.record import StepRows
from shardtoll.profiler.live.device_times import DeviceReading, RegionEvents
from shardtoll.profiler.live.fingerprint import Fingerprint, TakenPrints


@dataclass(frozen=True, slots=True)
class HeldRegion:
    """A region that has ended on the host."""

    events: RegionEvents | None
    prints: TakenPrints
    finish: Callable[[Sequence[Fingerprint], DeviceReading | None], StepRows]

    def ready(self) -> bool:
        """Whether its rows can be made without blocking."""
        return (self.events is None or self.events.ready()) and self.prints.ready()

    def rows(self) -> StepRows:
        """Make its rows; blocks where it is not ready."""
        if self.events is not None and not self.events.ready():
            self.events.wait()
        return self.finish(self.prints.read(), None if self.events is None else self.events.read())


class HeldRegions:
    """Regions in the order in which they ended."""

    def __init__(self) -> None:
        self._held: deque[HeldRegion] = deque()

    def add(self, region: HeldRegion) -> None:
        """Hold a region back."""
        self._held.append(region)

    def take(self, *, wait: bool) -> list[StepRows]:
        """Return the rows of regions that are ready, up to the first that is not; with `wait` of all."""
        found = []
        while self._held and (wait or self._held[0].ready()):
            found.append(self._held.popleft().rows())
        return found
