"""Which of torch's named ranges (`record_function`) of this thread were begun since a mark.

To stop a recording of torch's profiler while such a range is open, and to start another before it ends,
corrupts memory (torch 2.13): a step that would end there ends where the range does.
"""

from __future__ import annotations


class OpenRanges:
    """Counts ranges as they are entered and left."""

    def __init__(self) -> None:
        self._depth = 0
        self._least = 0

    def mark(self) -> None:
        """Forget of the ranges that are open now: they began before."""
        self._least = self._depth

    def entered(self) -> None:
        """A range was entered."""
        self._depth += 1

    def left(self) -> None:
        """A range was left, perhaps one that was entered before the counting began."""
        self._depth -= 1
        self._least = min(self._least, self._depth)

    @property
    def any_open(self) -> bool:
        """Whether a range begun since the mark is still open."""
        return self._depth > self._least
