"""How long the rows of ended regions wait to be made: those of many cost little more than those of one.

The first are made at once, as a job that dies young should leave what it did, and those of surveyed steps.
Then what has ended waits for a quarter of a second, which is what a job that is killed can lose.
"""

from __future__ import annotations

from typing import Final

FLUSH_NS: Final = 250_000_000
_FLUSH_REGIONS: Final = 256
FLUSH_ROWS: Final = 20_000
_EAGER: Final = 4
"""So many times at first rows are made at once."""


class Keeping:
    """Counts what waits, and says when it has waited long enough."""

    def __init__(self) -> None:
        self._regions = 0
        self._rows = 0
        self._made = 0
        self._since_ns = 0

    def add(self, start_ns: int, rows: int) -> None:
        """Note a region that has ended, and how many rows it will have."""
        if not self._regions:
            self._since_ns = start_ns
        self._regions += 1
        self._rows += rows

    def due(self, now_ns: int) -> bool:
        """Whether what waits is old or much enough to have its rows made."""
        if not self._regions:
            return False
        many = self._regions >= _FLUSH_REGIONS or self._rows >= FLUSH_ROWS
        return self._made < _EAGER or many or now_ns - self._since_ns >= FLUSH_NS

    def begin_anew(self) -> None:
        """Note that what waited is taken to have its rows made."""
        self._made += bool(self._regions)
        self._regions = self._rows = 0
