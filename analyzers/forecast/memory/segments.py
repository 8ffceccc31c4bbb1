"""Segments and blocks of torch's caching allocator, one set of pools for each stream.

Sizes and rules are those of CUDACachingAllocator.cpp in torch 2.6 to 2.13. Small requests (up to 1 MiB) share
2 MiB segments, and requests below 10 MiB share 20 MiB segments. Larger ones get a segment of their own size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

MIN_BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = 1 << 20
SMALL_SEGMENT_BYTES: Final = 2 << 20
LARGE_SEGMENT_BYTES: Final = 20 << 20
MIN_OWN_SEGMENT_BYTES: Final = 10 << 20
ROUND_LARGE_BYTES: Final = 2 << 20


def rounded(size: int) -> int:
    """Bytes that the allocator sets aside for a request of `size` bytes: the next multiple of 512."""
    return max(MIN_BLOCK_BYTES, -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_bytes(size: int) -> int:
    """Bytes of the new segment that a rounded request of `size` bytes asks the driver for."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. Neighbours of one segment are linked in the order of their addresses."""

    stream: int
    small: bool
    size: int
    address: int
    before: Block | None = None
    after: Block | None = None
    used: bool = False

    @property
    def whole(self) -> bool:
        """Whether the block is a segment that was never split, or is one again."""
        return self.before is None and self.after is None


@dataclass(slots=True)
class Pool:
    """Free blocks of one stream and kind by size, then address: the first that is large enough is taken."""

    small: bool
    free: list[tuple[int, int, Block]] = field(default_factory=list)

    def take(self, size: int, limit: int | None) -> Block | None:
        """Remove and return the smallest free block of at least `size` bytes; None if there is none.

        `limit` is max_split_size: smaller requests leave larger blocks alone, and larger requests take no
        block that would waste 20 MiB or more.
        """
        place = bisect_left(self.free, (size, -1))
        if place == len(self.free):
            return None
        block = self.free[place][2]
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT_BYTES:
                return None
        del self.free[place]
        return block

    def put(self, block: Block) -> None:
        """Add a free block."""
        insort(self.free, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        """Remove a block that is in the pool."""
        del self.free[bisect_left(self.free, (block.size, block.address))]


def split(block: Block, size: int, pool: Pool, limit: int | None) -> None:
    """Cut `block` down to `size` bytes if the rules allow it; the rest is free again."""
    rest = block.size - size
    if pool.small:
        if rest < MIN_BLOCK_BYTES:
            return
    elif rest <= SMALL_BYTES or (limit is not None and size >= limit):
        return
    remaining = Block(block.stream, block.small, rest, block.address + size, block, block.after)
    if block.after is not None:
        block.after.before = remaining
    block.after, block.size = remaining, size
    pool.put(remaining)


def merge(block: Block, pool: Pool) -> Block:
    """Join a freed block with its free neighbours, put the result into the pool and return it."""
    before, after = block.before, block.after
    if before is not None and not before.used:
        pool.remove(before)
        before.size += block.size
        before.after = after
        if after is not None:
            after.before = before
        block = before
    if after is not None and not after.used:
        pool.remove(after)
        block.size += after.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block
    pool.put(block)
    return block
