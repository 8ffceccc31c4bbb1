"""A model of torch's CUDA caching allocator: allocations in, peaks and a timeline out.

Source of the rules: c10/cuda/CUDACachingAllocator.cpp and PyTorch's notes on CUDA memory management.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from shardtoll.analyzers.forecast.memory.expandable import ExpandablePool
from shardtoll.analyzers.forecast.memory.segments import (
    SMALL_BYTES,
    Block,
    Pool,
    merge,
    rounded,
    segment_bytes,
    split,
)


class Event(NamedTuple):
    """A tensor's storage is born (`size` bytes) or freed (`size` is None)."""

    key: Hashable
    size: int | None
    category: str = "other"
    stream: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """What PYTORCH_CUDA_ALLOC_CONF sets, and the memory that there is. Bytes; None: no limit."""

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
    """(event, allocated, reserved) wherever the allocated bytes reached a new high, and at the end."""


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

    def malloc(self, key: Hashable, size: int, stream: int = 0) -> int:
        """Allocate and return the bytes of the block; raises OutOfMemory, and ValueError for a key in use."""
        if key in self._used:
            raise ValueError(f"storage {key!r} is allocated already")
        size = rounded(size)
        small = size <= SMALL_BYTES
        block = self._expand(size, stream, small) if self.options.expandable_segments else None
        if block is None:
            block = self._from_segments(size, stream, small)
        block.used = True
        self._used[key] = block
        self.allocated_bytes += block.size
        return block.size

    def free(self, key: Hashable) -> int:
        """Free the storage of `key` and return its bytes; raises ValueError if there is none."""
        block = self._used.pop(key, None)
        if block is None:
            raise ValueError(f"storage {key!r} is not allocated")
        block.used = False
        size = block.size
        self.allocated_bytes -= size
        if self.options.expandable_segments:
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
        if more:
            self._reserve(more)
            more = pool.missing(size)  # freeing cached pages may have taken some of this pool's
            pool.map(more)
        return pool.take(size)

    def _reserve(self, length: int) -> None:
        """Ask the driver; if it has too little, free every cached segment and ask again."""
        capacity = self.options.capacity_bytes
        if capacity is not None and self.reserved_bytes + length > capacity:
            self._release_all()
            self.retries += 1
            if self.reserved_bytes + length > capacity:
                raise OutOfMemory(f"{length} bytes asked for, {capacity - self.reserved_bytes} left")
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

    Storages of 0 bytes take no memory. A free of a storage that was never born is ignored: it is older than the
    events. Raises ValueError if a key is born twice.
    """
    allocator = Allocator(options)
    result = Replayed()
    categories: dict[Hashable, str] = {}
    live: defaultdict[str, int] = defaultdict(int)
    index = -1
    for index, (key, size, category, stream) in enumerate(events):
        if size is None:
            if key in categories:
                live[categories.pop(key)] -= allocator.free(key)
            continue
        if size == 0:
            continue
        try:
            taken = allocator.malloc(key, size, stream)
        except OutOfMemory:
            result.out_of_memory_at = index
            break
        categories[key] = category
        live[category] += taken
        if allocator.allocated_bytes > result.allocated_peak_bytes:
            result.allocated_peak_bytes = allocator.allocated_bytes
            result.at_peak = dict(live)
            if timeline:
                result.timeline.append((index, allocator.allocated_bytes, allocator.reserved_bytes))
        if allocator.reserved_bytes > result.reserved_peak_bytes:
            result.reserved_peak_bytes = allocator.reserved_bytes
    if timeline:
        result.timeline.append((index, allocator.allocated_bytes, allocator.reserved_bytes))
    result.retries = allocator.retries
    result.at_peak = {name: size for name, size in result.at_peak.items() if size}
    return result
