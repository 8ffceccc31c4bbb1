"""How long the rows of ended regions wait to be made: those of many cost little more than those of one.

The first are made at once, as a job that dies young should leave its records. So are those of surveyed steps.
After these, ended regions wait as long as their rows can be written within a quarter of a second of their
end. A job that is killed can lose that much. Rows are made where a region ends, so the next end has to be
foreseen. If a region takes longer than that, another thread keeps provisional rows of the waiting regions in
time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FLUSH_NS: Final = 250_000_000
_LEAST_NS: Final = 75_000_000
"""Rows that can still wait are not made more often than this: making them is expensive if steps are short."""
_FLUSH_REGIONS: Final = 256
FLUSH_ROWS: Final = 20_000
_EAGER: Final = 4
"""So many times at first rows are made at once."""
_SEEN: Final = 8
"""So many last regions show how long the next may take."""
_ROOM: Final = 2
"""A busy machine makes a region take so many times as long as the longest of those."""
_OVERDUE: Final = 1.25
"""A region that takes so many times as long as the longest of those is taken to last."""
_CALM_NS: Final = 150_000_000
"""So long nobody minds what waits: mostly the region ends, and its rows are made."""
SPARE_NS: Final = 60_000_000
"""Time that a busy machine may take to let another thread run."""


class Keeping:
    """Counts waiting regions, and says when they have waited long enough."""

    def __init__(self) -> None:
        self._regions = 0
        self._rows = 0
        self._made = 0
        self._since_ns = 0
        """When the first of the regions that wait ended."""
        self._lengths_ns: deque[int] = deque(maxlen=_SEEN)
        self._longest_ns = 0
        """The longest of them."""
        self._ended_ns = 0
        """When the last region ended."""
        self._last_ns = 0
        """When rows were made last."""
        self._making_ns = 0
        """How long it takes to make them."""

    def saw(self, start_ns: int, end_ns: int) -> None:
        """Note how long a region without rows took, as a gap between steps: the next end comes after it."""
        self._lengths_ns.append(end_ns - start_ns)
        self._longest_ns = max(self._lengths_ns)
        self._ended_ns = end_ns

    def add(self, start_ns: int, end_ns: int, rows: int) -> None:
        """Note a region that has ended, and how many rows it will have."""
        if not self._regions:
            self._since_ns = end_ns
        self._regions += 1
        self._rows += rows
        self.saw(start_ns, end_ns)

    def due(self, now_ns: int) -> bool:
        """Whether the waiting rows are many, or will be too old when the next region ends."""
        if not self._regions:
            return False
        if self._made < _EAGER or self._regions >= _FLUSH_REGIONS or self._rows >= FLUSH_ROWS:
            return True
        age_ns = now_ns - self._since_ns
        if age_ns >= FLUSH_NS:
            return True
        foreseen_ns = max(_ROOM * self._longest_ns, _OVERDUE * self._longest_ns + SPARE_NS)
        then_ns = age_ns + foreseen_ns + self._making_ns
        return then_ns >= FLUSH_NS and now_ns - self._last_ns >= _LEAST_NS

    def provisional_ns(self, since_ns: int, *, making: bool) -> int:
        """Return when provisional rows of regions that wait since then have to be made; any thread may ask.

        The time comes once the running region takes longer than was foreseen, and early enough to write them.
        `making`: the real ones are being made.
        """
        latest_ns = since_ns + FLUSH_NS - SPARE_NS - self._making_ns
        if making:
            return latest_ns
        overdue_ns = self._ended_ns + int(_OVERDUE * self._longest_ns)
        return min(max(overdue_ns, since_ns + _CALM_NS - self._making_ns), latest_ns)

    def begin_anew(self) -> None:
        """Note that what waited is taken to have its rows made."""
        self._made += bool(self._regions)
        self._regions = self._rows = 0

    def made(self, begin_ns: int, end_ns: int) -> None:
        """Note that rows were made and written from then to then."""
        self._last_ns = end_ns
        # A slow disk is remembered for some times, and forgotten.
        self._making_ns = min(max(end_ns - begin_ns, self._making_ns // 2), FLUSH_NS)
