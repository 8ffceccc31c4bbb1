"""A program whose collectives are timed as any program would, after a calibration."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce")


def collectives(sizes: list[int], rounds: int) -> list[Any]:
    """Run each op at each size; return (op, message bytes, begin ns, end ns) of this rank's calls."""
    ranks = dist.get_world_size()
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    cases: list[tuple[str, int, Callable[[], Any]]] = []
    for size in sizes:
        whole = torch.ones(size // 4 // ranks * ranks)
        part, other = torch.ones(whole.numel() // ranks), torch.empty_like(whole)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),  # type: ignore[misc]
            "all_gather": lambda whole=whole, part=part: all_gather(whole, part),  # type: ignore[misc]
            "reduce_scatter": lambda whole=whole, part=part: reduce_scatter(part, whole),  # type: ignore[misc]
            "broadcast": lambda whole=whole: dist.broadcast(whole, src=1),  # type: ignore[misc]
            "all_to_all": lambda whole=whole, other=other: dist.all_to_all_single(other, whole),  # type: ignore[misc]
            "reduce": lambda whole=whole: dist.reduce(whole, dst=1),  # type: ignore[misc]
        }
        cases += [(op, whole.numel() * 4, calls[op]) for op in OPS]
    found = []
    for number in range(rounds + 1):
        for op, size, call in cases:
            whole.fill_(1.0)
            dist.barrier()
            begun = time.perf_counter_ns()
            call()
            if number:  # the first makes connections
                found.append((op, size, begun, time.perf_counter_ns()))
    return found
