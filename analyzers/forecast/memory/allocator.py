"""A model of torch's CUDA caching allocator: allocations in, peaks and a timeline out.

Source of the rules: c10/cuda/CUDACachingAllocator.cpp and PyTorch's notes on CUDA memory management.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from shardtoll.analyzers.forecast.memory.expandable import ExpandablePool
from shardtoll.analyzers.forecast.memory.segments import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    Block,
    Pool,
    merge,
    segment_bytes,
    split,
)

Event = tuple[Hashable, int | None, str, int]
"""(storage, bytes, category, stream): a storage is born, or freed if the bytes are None."""


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Settings of PYTORCH_CUDA_ALLOC_CONF, and the memory that there is. Bytes; None: no limit."""

    capacity_bytes: int | None = None
    max_split_bytes: int | None = None
    expandable_segments: bool = False
    garbage_collection_threshold: float | None = None
    """Share of the capacity above which free segments go back before a new one is asked for."""


@dataclass(slots=True)
class Replayed:
    """Peaks of one replay, in bytes."""

    allocated_peak_bytes: int = 0
    reserved_peak_bytes: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)
    """Allocated bytes by category when the allocated bytes were highest."""
    out_of_memory_at: int | None = None
    """Index of the event that found no memory; the replay ends there. None if all events had it."""
    retries: int = 0
    """How often cached segments had to be freed to go on."""
    timeline: list[tuple[int, int, int]] = field(default_factory=list)
    """(event, allocated, reserved) after each event; empty unless asked for."""
    peak_at: int = -1
    """Index of the event after which the allocated bytes were highest."""


class OutOfMemory(Exception):
    """The model's GPU has no memory for a request, not even without cached segments."""


class Allocator:
    """The allocator's state. `malloc` and `free` take any hashable key."""

    def __init__(self, options: AllocatorOptions | None = None) -> None:
        self.options = options or AllocatorOptions()
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._expandable: dict[tuple[int, bool], ExpandablePool] = {}
        self._used: dict[Hashable, Block] = {}
        self._next_address = 0
        self._expands = self.options.expandable_segments

    def malloc(self, key: Hashable, size: int, stream: int = 0) -> int:
        """Allocate and return the bytes of the block; raises OutOfMemory, and ValueError for a key in use."""
        if key in self._used:
            raise ValueError(f"storage {key!r} is allocated already")
        size = (size + 511) // 512 * 512 or MIN_BLOCK_BYTES
        small = size <= SMALL_BYTES
        if self._expands:
            block = self._expand(size, stream, small)
        else:
            block = self._from_segments(size, stream, small)
        block.used = True
        self._used[key] = block
        self.allocated_bytes += block.size
        assert self.reserved_bytes >= self.allocated_bytes, "more is allocated than was reserved"
        return block.size

    def free(self, key: Hashable) -> int:
        """Free the storage of `key` and return its bytes; raises ValueError if there is none."""
        block = self._used.pop(key, None)
        if block is None:
            raise ValueError(f"storage {key!r} is not allocated")
        block.used = False
        size = block.size
        self.allocated_bytes -= size
        if self._expands:
            self._expandable[block.stream, block.small].free(block)
        else:
            merge(block, self._pools[block.stream, block.small])
        return size

    def _from_segments(self, size: int, stream: int, small: bool) -> Block:
        limit = None if small else self.options.max_split_bytes
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = Pool(small)
        block = pool.take(size, limit)
        if block is None:
            length = segment_bytes(size)
            self._collect(length)
            self._reserve(length)
            block = Block(stream, small, length, self._next_address)
            self._next_address += length
        if block.size > size:
            split(block, size, pool, limit)
        return block

    def _expand(self, size: int, stream: int, small: bool) -> Block:
        pool = self._expandable.get((stream, small))
        if pool is None:
            pool = self._expandable[stream, small] = ExpandablePool(stream, small)
        more = pool.missing(size)
        if more and self._lacks(more):
            self._retry()
            more = pool.missing(size)  # the retry may have unmapped free pages of this pool too
        self._take(more)
        pool.map(more)
        return pool.take(size)

    def _reserve(self, length: int) -> None:
        """Ask the driver; if it has too little, free every cached segment and ask again."""
        if self._lacks(length):
            self._retry()
        self._take(length)

    def _lacks(self, length: int) -> bool:
        """Return whether the driver has less memory left than this."""
        capacity = self.options.capacity_bytes
        return capacity is not None and self.reserved_bytes + length > capacity

    def _retry(self) -> None:
        self._release_all()
        self.retries += 1

    def _take(self, length: int) -> None:
        if length and self._lacks(length):
            left = (self.options.capacity_bytes or 0) - self.reserved_bytes
            raise OutOfMemory(f"{length} bytes asked for, {left} left")
        self.reserved_bytes += length

    def _collect(self, length: int) -> None:
        share, capacity = self.options.garbage_collection_threshold, self.options.capacity_bytes
        if share is not None and capacity is not None and self.reserved_bytes + length > share * capacity:
            self._release_all()

    def _release_all(self) -> None:
        for pool in self._pools.values():
            kept = [entry for entry in pool.free if not entry[2].whole]
            self.reserved_bytes -= sum(entry[0] for entry in pool.free) - sum(entry[0] for entry in kept)
            pool.free[:] = kept
        for pages in self._expandable.values():
            self.reserved_bytes -= pages.unmap()


def replay(
    events: Iterable[Event], options: AllocatorOptions | None = None, *, timeline: bool = False
) -> Replayed:
    """Replay births and deaths of storages in order and return the peaks.

    Storages of 0 bytes take no memory. A free of a storage that was never born is ignored: it is older
    than the events. Raises ValueError if a key is born twice.
    """
    events = events if isinstance(events, Sequence) else list(events)
    allocator = Allocator(options)
    malloc, free = allocator.malloc, allocator.free
    taken: dict[Hashable, int] = {}
    result = Replayed()
    peak, peak_at, reserved_peak = 0, -1, 0
    for index, (key, size, _, stream) in enumerate(events):
        if size is None:
            if key in taken:
                free(key)
                if timeline:
                    result.timeline.append((index, allocator.allocated_bytes, allocator.reserved_bytes))
            continue
        if size == 0:
            continue
        try:
            taken[key] = malloc(key, size, stream)
        except OutOfMemory:
            result.out_of_memory_at = index
            break
        if allocator.allocated_bytes > peak:
            peak, peak_at = allocator.allocated_bytes, index
        if allocator.reserved_bytes > reserved_peak:
            reserved_peak = allocator.reserved_bytes
        if timeline:
            result.timeline.append((index, allocator.allocated_bytes, allocator.reserved_bytes))
    result.allocated_peak_bytes, result.reserved_peak_bytes = peak, reserved_peak
    result.retries, result.peak_at = allocator.retries, peak_at
    result.at_peak = _by_category(events[: peak_at + 1], taken)
    return result


def _by_category(events: Sequence[Event], taken: dict[Hashable, int]) -> dict[str, int]:
    """Bytes that are live after the events."""
    live: dict[Hashable, str] = {}
    for key, size, category, _ in events:
        if size is None:
            live.pop(key, None)
        elif size:
            live[key] = category
    sums: defaultdict[str, int] = defaultdict(int)
    for key, category in live.items():
        sums[category] += taken[key]
    return dict(sums)
