"""Peak memory of a dry run: its storages, born and freed in order, through the model of torch's allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from shardtoll.analyzers.forecast.dry.lifetimes import BACKWARD, happenings
from shardtoll.analyzers.forecast.memory.allocator import Allocator
from shardtoll.analyzers.forecast.memory.allocator_settings import options_of
from shardtoll.ledger.answers.dry_step import DryMemory
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.records.dry import DryStorage
from shardtoll.ledger.records.record import Group

_CONTEXT_BYTES = 520 << 20
"""CUDA's context and the code of kernels. Our own choice, from no measurement: see `_OUTSIDE_LEAST`."""
_NCCL_BYTES = 48 << 20
"""Buffers of one communicator. Our own choice, from no measurement: see `_OUTSIDE_LEAST`."""
_OUTSIDE_LEAST, _LEAST, _MOST = 0.8, 0.95, 1.06
"""The band: of what lies outside the allocator at least so much, and of all that is reserved between so much
and so much. Our own choice too: no published row of a dry run's kind states its storages. On a full GPU of 80
GB the ends are 4 GB below and 4.8 GB above, far more than a context and a few communicators can be wrong by.
With less than 5 GB in use these choices decide the number, and the band may not hold it."""
_MOST_POINTS = 400
_MOST_PLACES = 12


def peak_memory(
    storages: Sequence[DryStorage],
    groups: Sequence[Group],
    capacity_bytes: int,
    cublas_bytes: int,
    settings: str | None = None,
) -> DryMemory:
    """Return the peak of one rank: its storages replayed, and what lies outside the allocator.

    `cublas_bytes`: cuBLAS's workspace, allocated through the allocator. Each thread that multiplies has one
    of its own: autograd runs backward on another thread than the program's.
    `settings`: torch's allocator as PYTORCH_ALLOC_CONF sets it. It is replayed without a limit: torch would
    free what it has cached before it fails, so that a step whose allocated bytes alone fit may still run.

    The allocated bytes are those of the recorded steps; the reserved ones have grown since the first step,
    and hold on to what came to lie badly then (see `lifetimes`).
    """
    allocator = Allocator(options_of(settings))
    streams: dict[str, int] = {}
    threads = {"program"}
    allocator.malloc("workspace of program", cublas_bytes)
    live: dict[Hashable, DryStorage] = {}
    at_peak: dict[Hashable, DryStorage] = {}
    peak: int | None = None
    reserved_peak = allocator.reserved_bytes
    timeline: list[tuple[float, int, int]] = []
    for each in happenings(storages):
        storage = each.storage
        if each.recorded and peak is None:
            peak, at_peak = allocator.allocated_bytes, dict(live)
        if each.born:
            if storage.phase in BACKWARD and "autograd" not in threads:
                threads.add("autograd")
                allocator.malloc("workspace of autograd", cublas_bytes)
            stream = streams.setdefault(storage.stream, len(streams))
            allocator.malloc(each.key, max(storage.bytes, 1), stream)
            live[each.key] = storage
        else:
            allocator.free(each.key)
            live.pop(each.key)
        reserved_peak = max(reserved_peak, allocator.reserved_bytes)
        if each.recorded:
            assert peak is not None
            if allocator.allocated_bytes > peak:
                peak, at_peak = allocator.allocated_bytes, dict(live)
            timeline.append((float(each.order), allocator.allocated_bytes, allocator.reserved_bytes))
    if peak is None:
        # Nothing happened in the recorded steps.
        peak, at_peak = allocator.allocated_bytes, dict(live)
    outside = _CONTEXT_BYTES + sum(_NCCL_BYTES for group in groups if group.size > 1)
    reserved = float(reserved_peak + outside)
    step = max(1, len(timeline) // _MOST_POINTS)
    return DryMemory(
        allocated_bytes=peak,
        reserved_bytes=Band(
            reserved, max(peak + outside * _OUTSIDE_LEAST, reserved * _LEAST), reserved * _MOST
        ),
        capacity_bytes=capacity_bytes,
        outside_bytes=outside,
        at_peak=_by_category(at_peak, peak),
        by_module=tuple(_summed(at_peak, "module")[:_MOST_PLACES]),
        by_source=tuple(_summed(at_peak, "source")[:_MOST_PLACES]),
        timeline=tuple(timeline[::step]),
    )


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
