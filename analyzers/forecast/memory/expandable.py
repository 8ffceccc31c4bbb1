"""Expandable segments of torch's caching allocator: one growing segment for each stream and kind of request.

Pages are mapped at the segment's end when no hole is large enough (`expandable_segments:True`).
"""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.forecast.memory.segments import (
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
    Block,
    Pool,
    merge,
    split,
)

_NO_LIMIT: Final = None


class ExpandablePool:
    """One segment. Its pages are 2 MiB for small requests and 20 MiB for large ones."""

    def __init__(self, stream: int, small: bool) -> None:
        self.page_bytes = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self._pool = Pool(small)
        self._stream = stream
        self._last: Block | None = None
        self._end = 0

    def missing(self, size: int) -> int:
        """Bytes to map before `take(size)` succeeds; 0 if a free block is large enough."""
        free = self._pool.free
        if free and free[-1][0] >= size:
            return 0
        tail = self._last.size if self._last is not None and not self._last.used else 0
        return -(-(size - tail) // self.page_bytes) * self.page_bytes

    def map(self, length: int) -> None:
        """Map `length` more bytes at the end."""
        if length == 0:
            return
        block = Block(self._stream, self._pool.small, length, self._end, before=self._last)
        self._end += length
        if self._last is not None:
            self._last.after = block
        self._last = merge(block, self._pool)

    def take(self, size: int) -> Block:
        """Return the smallest free block of at least `size` bytes, cut to `size`."""
        block = self._pool.take(size, _NO_LIMIT)
        assert block is not None, "mapped before"
        if block.size > size:
            rest = block.size - size
            if rest >= 512:
                was_last = block is self._last
                _cut(block, size, self._pool)
                if was_last:
                    self._last = block.after
        return block

    def free(self, block: Block) -> None:
        """Give a block back."""
        after = block.after
        merged = merge(block, self._pool)
        if block is self._last or (after is not None and after is self._last and not after.used):
            self._last = merged

    def unmap(self) -> int:
        """Unmap the whole free pages at the end and return their bytes."""
        last = self._last
        if last is None or last.used:
            return 0
        gone = last.size // self.page_bytes * self.page_bytes
        if gone == 0:
            return 0
        self._pool.remove(last)
        self._end -= gone
        last.size -= gone
        if last.size:
            self._pool.put(last)
        else:
            self._last = last.before
            if last.before is not None:
                last.before.after = None
        return gone


def _cut(block: Block, size: int, pool: Pool) -> None:
    # Expandable segments cut large blocks as small ones: the rest is never too small to keep.
    small, pool.small = pool.small, True
    try:
        split(block, size, pool, _NO_LIMIT)
    finally:
        pool.small = small
