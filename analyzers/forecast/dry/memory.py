"""Peak memory of a dry run: its storages, born and freed in order, through the model of torch's allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from shardtoll.analyzers.forecast.dry.lifetimes import BACKWARD, happenings
from shardtoll.analyzers.forecast.memory.allocator import Allocator, AllocatorOptions, OutOfMemory
from shardtoll.ledger.answers.dry_step import DryMemory
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.records.dry import DryStorage
from shardtoll.ledger.records.record import Group

_CONTEXT_BYTES = 520 << 20
"""CUDA's context and the code of kernels. Our own choice, from no measurement: see `_OUTSIDE_LEAST`."""

_NCCL_BYTES = 48 << 20
"""Buffers of one communicator. Our own choice, from no measurement: see `_OUTSIDE_LEAST`."""

_OUTSIDE_LEAST, _LEAST, _MOST = 0.8, 0.95, 1.06
"""The band's low end has `_OUTSIDE_LEAST` of the memory outside the allocator. Both ends are `_LEAST` and
`_MOST` of all reserved memory. Our own choice too: no published row of a dry run's kind states its storages.
On a full GPU of 80
GB the ends are 4 GB below and 4.8 GB above. A context and a few communicators are off by far less.
With less than 5 GB in use these choices decide the number, and the band may not hold it."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
"""Operators of torch that call cuBLAS."""

_MOST_POINTS = 400

_MOST_PLACES = 12

_MIB: Final = 1 << 20

_LEAST_SPLIT_MIB: Final = 20
"""torch refuses a smaller `max_split_size_mb` (kLargeBuffer in c10/cuda/CUDAAllocatorConfig.cpp)."""


@dataclass(slots=True)
class _Replay:
    """Results of one replay."""

    allocated_bytes: int = 0
    """Peak of the recorded steps."""
    reserved_bytes: int = 0
    """Peak since the first step."""
    retries: int = 0
    at_peak: dict[Hashable, DryStorage] = field(default_factory=dict)
    timeline: list[tuple[float, int, int]] = field(default_factory=list)


def peak_memory(
    storages: Sequence[DryStorage],
    groups: Sequence[Group],
    capacity_bytes: int,
    cublas_bytes: int,
    settings: str | None = None,
) -> DryMemory:
    """Return the peak of one rank: its storages replayed, and what lies outside the allocator.

    `cublas_bytes`: cuBLAS's workspace, allocated through the allocator. Each thread that multiplies takes one
    of its own for good, once its first product has a result. Autograd runs backward on another thread than
    the program's.
    `settings`: torch's allocator as PYTORCH_ALLOC_CONF sets it. `capacity_bytes`: 0 if unknown. If the
    segments would not fit, they are replayed within the capacity: torch frees the cached ones before it
    fails.

    The allocated bytes are those of the recorded steps. The reserved ones have grown since the first step,
    and still hold segments badly placed then (see `lifetimes`).
    """
    options = options_of(settings)
    outside = _CONTEXT_BYTES + sum(_NCCL_BYTES for group in groups if group.size > 1)
    replayed = _replayed(storages, cublas_bytes, options)
    unlimited = float(replayed.reserved_bytes + outside)
    if 0 < capacity_bytes < unlimited:
        limited = replace(options, capacity_bytes=max(capacity_bytes - outside, 0))
        # If they do not fit even so, what the step needs is what it would take with room.
        with suppress(OutOfMemory):
            replayed = _replayed(storages, cublas_bytes, limited)
    reserved = float(replayed.reserved_bytes + outside)
    peak = replayed.allocated_bytes
    step = max(1, len(replayed.timeline) // _MOST_POINTS)
    return DryMemory(
        allocated_bytes=peak,
        # How far the model of the allocator is off shows in what the step would take with room.
        reserved_bytes=Band(
            reserved,
            min(reserved, max(peak + outside * _OUTSIDE_LEAST, unlimited * _LEAST)),
            unlimited * _MOST,
        ),
        capacity_bytes=capacity_bytes,
        outside_bytes=outside,
        retries=replayed.retries,
        at_peak=_by_category(replayed.at_peak, peak),
        by_module=tuple(_summed(replayed.at_peak, "module")[:_MOST_PLACES]),
        by_source=tuple(_summed(replayed.at_peak, "source")[:_MOST_PLACES]),
        timeline=tuple(replayed.timeline[::step]),
    )


def _replayed(storages: Sequence[DryStorage], cublas_bytes: int, options: AllocatorOptions) -> _Replay:
    """Return the peaks of a replay; raises OutOfMemory if the options have less memory than it needs."""
    allocator = Allocator(options)
    streams: dict[str, int] = {}
    workspaces: set[str] = set()
    live: dict[Hashable, DryStorage] = {}
    made = _Replay()
    began = False
    for each in happenings(storages):
        storage = each.storage
        if each.recorded and not began:
            began = True
            made.allocated_bytes, made.at_peak = allocator.allocated_bytes, dict(live)
        if each.born:
            stream = streams.setdefault(storage.stream, len(streams))
            allocator.malloc(each.key, max(storage.bytes, 1), stream)
            live[each.key] = storage
            thread = "autograd" if storage.phase in BACKWARD else "program"
            if thread not in workspaces and _is_product(storage):
                workspaces.add(thread)
                allocator.malloc(f"workspace of {thread}", cublas_bytes)
        else:
            allocator.free(each.key)
            live.pop(each.key)
        made.reserved_bytes = max(made.reserved_bytes, allocator.reserved_bytes)
        if each.recorded:
            if allocator.allocated_bytes > made.allocated_bytes:
                made.allocated_bytes, made.at_peak = allocator.allocated_bytes, dict(live)
            made.timeline.append((float(each.order), allocator.allocated_bytes, allocator.reserved_bytes))
    if not began:
        # Nothing happened in the recorded steps.
        made.allocated_bytes, made.at_peak = allocator.allocated_bytes, dict(live)
    made.retries = allocator.retries
    return made


def _is_product(storage: DryStorage) -> bool:
    """Whether it is the result of a matrix product: of `aten.mm.default`, as torch names operators."""
    return (storage.op or "").rpartition(".")[0].rpartition(".")[2] in _PRODUCTS


def _by_category(live: Mapping[Hashable, DryStorage], allocated: int) -> dict[str, int]:
    """Return bytes by category, which add up to the allocated bytes.

    `allocator` is what no tensor of the program holds: cuBLAS's workspace, and what sizes are rounded up by.
    """
    sums = dict(_summed(live, "category"))
    sums["allocator"] = allocated - sum(sums.values())
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _summed(live: Mapping[Hashable, DryStorage], column: str) -> list[tuple[str, int]]:
    sums: Counter[str] = Counter()
    for storage in live.values():
        sums[_label(storage, column)] += storage.bytes
    return sums.most_common()


def _label(storage: DryStorage, column: str) -> str:
    """Return what a storage is listed under; the root module's name is empty."""
    label: str | None = getattr(storage, column)
    if column == "module" and label is None and storage.source is not None:
        return "optimizer step" if storage.phase == "optimizer" else "outside modules"
    return "(root)" if label == "" else label or "unknown"


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
