"""One clock for everything a rank measures: monotonic, with a fixed offset to Unix time.

Durations come from the monotonic clock only. The offset is read once. Records of several ranks on one host,
and the spans of torch's profiler (Unix time), thus stand on the same axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_READINGS = 5


@dataclass(frozen=True, slots=True)
class Clock:
    """Reads time; tests inject their own `monotonic_ns` and `unix_ns`."""

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns
    offset_ns: int = field(init=False)
    """Unix time minus monotonic time, from the tightest of a few paired readings."""

    def __post_init__(self) -> None:
        best: tuple[int, int] | None = None
        for _ in range(_READINGS):
            before = self.monotonic_ns()
            unix = self.unix_ns()
            after = self.monotonic_ns()
            reading = (after - before, unix - (before + after) // 2)
            best = reading if best is None else min(best, reading)
        assert best is not None
        object.__setattr__(self, "offset_ns", best[1])

    def to_unix(self, monotonic_ns: int) -> int:
        """Return the Unix time of a monotonic reading."""
        return monotonic_ns + self.offset_ns

    def from_unix(self, unix_ns: int) -> int:
        """Return the monotonic reading of a Unix time."""
        return unix_ns - self.offset_ns
