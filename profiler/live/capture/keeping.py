"""How long the rows of ended regions wait to be made: those of many cost little more than those of one.

The first are made at once, as a job that dies young should leave what it did, and those of surveyed steps.
Then what has ended waits as long as it can be written within a quarter of a second of its end, which is
what a job that is killed can lose. Rows are made where a region ends, so the next end has to be foreseen.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FLUSH_NS: Final = 250_000_000
_LEAST_NS: Final = 75_000_000
"""Rows are not made more often than this for what has yet to grow old: making them
is expensive if steps are short."""
_FLUSH_REGIONS: Final = 256
FLUSH_ROWS: Final = 20_000
_EAGER: Final = 4
"""So many times at first rows are made at once."""
_SEEN: Final = 8
"""So many last regions tell how long the next may take."""
_ROOM: Final = 2
"""A busy machine makes a region take so many times as long as the longest of those."""


class Keeping:
    """Counts what waits, and says when it has waited long enough."""

    def __init__(self) -> None:
        self._regions = 0
        self._rows = 0
        self._made = 0
        self._since_ns = 0
        """When the first of the regions that wait ended."""
        self._lengths_ns: deque[int] = deque(maxlen=_SEEN)
        self._last_ns = 0
        """When rows were made last."""
        self._making_ns = 0
        """How long it takes to make them."""

    def saw(self, start_ns: int, end_ns: int) -> None:
        """Note how long a region without rows took, as a gap between steps: the next end comes after it."""
        self._lengths_ns.append(end_ns - start_ns)

    def add(self, start_ns: int, end_ns: int, rows: int) -> None:
        """Note a region that has ended, and how many rows it will have."""
        if not self._regions:
            self._since_ns = end_ns
        self._regions += 1
        self._rows += rows
        self.saw(start_ns, end_ns)

    def due(self, now_ns: int) -> bool:
        """Whether what waits is much, or will be too old when the next region ends."""
        if not self._regions:
            return False
        if self._made < _EAGER or self._regions >= _FLUSH_REGIONS or self._rows >= FLUSH_ROWS:
            return True
        age_ns = now_ns - self._since_ns
        if age_ns >= FLUSH_NS:
            return True
        then_ns = age_ns + _ROOM * max(self._lengths_ns) + self._making_ns
        return then_ns >= FLUSH_NS and now_ns - self._last_ns >= _LEAST_NS

    def begin_anew(self) -> None:
        """Note that what waited is taken to have its rows made."""
        self._made += bool(self._regions)
        self._regions = self._rows = 0

    def made(self, begin_ns: int, end_ns: int) -> None:
        """Note that rows were made and written from then to then."""
        self._last_ns = end_ns
        # A slow disk is remembered for some times, and forgotten.
        self._making_ns = min(max(end_ns - begin_ns, self._making_ns // 2), FLUSH_NS)
