"""Reads PYTORCH_ALLOC_CONF: what of it the model of torch's allocator knows."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.forecast.memory.allocator import AllocatorOptions

_MIB: Final = 1 << 20
_LEAST_SPLIT_MIB: Final = 20
"""torch refuses a smaller `max_split_size_mb` (kLargeBuffer in c10/cuda/CUDAAllocatorConfig.cpp)."""


def options_of(settings: str | None) -> AllocatorOptions:
    """Return the allocator's options; `settings` as `expandable_segments:True,max_split_size_mb:128`.

    Other keys and values that torch would refuse change nothing: they come from a record, not from a user.
    """
    values = dict(_pairs(settings or ""))
    megabytes = values.get("max_split_size_mb", "")
    number = int(megabytes) if megabytes.isascii() and megabytes.isdigit() and len(megabytes) < 8 else 0
    return AllocatorOptions(
        expandable_segments=values.get("expandable_segments") == "True",
        max_split_bytes=number * _MIB if number > _LEAST_SPLIT_MIB else None,
    )


def _pairs(settings: str) -> list[tuple[str, str]]:
    parts = (part.partition(":") for part in settings.replace(" ", "").split(","))
    return [(key, value) for key, _, value in parts]
