"""One collective of each op on one group, ready to be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from shardtoll.ledger.records.volume import OPS

ITEM_BYTES: Final = 4
PAIRED: Final = ("send", "recv")
"""Timed as one: the message from a group's first rank to its last."""

TIMED: Final = tuple(op for op in OPS if op != "recv")
"""Operations that are measured; `send` gives the times of both ends."""


def fitting_bytes(op: str, message_bytes: int, ranks: int) -> int:
    """Return the size nearest below that each rank has whole elements of, at least one; 0 for a barrier."""
    if op == "barrier":
        return 0
    each = 1 if op in PAIRED else ranks
    return max(each, message_bytes // ITEM_BYTES // each * each) * ITEM_BYTES


def buffers(message_bytes: int, ranks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and output that all calls up to that size share."""
    count = max(ranks, message_bytes // ITEM_BYTES)
    return torch.zeros(count, device=device), torch.zeros(count, device=device)


def call_of(
    op: str, message_bytes: int, group: dist.ProcessGroup | None, given: torch.Tensor, taken: torch.Tensor
) -> Callable[[], Any]:
    """Return a function that runs one collective of that message size (nccl-tests' definition) and waits for
    it; one that does nothing on a rank outside of the group (None)."""
    if group is None:
        return lambda: None
    ranks = dist.get_process_group_ranks(group)
    count, rank = message_bytes // ITEM_BYTES, dist.get_rank()
    whole, other = given[:count], taken[:count]
    each = count // len(ranks)
    first, last = ranks[0], ranks[-1]
    # torch 2.13 renamed these two and warns about the old names.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    parts = list(torch.split(other, each)) if op in ("gather", "scatter") and rank == first else None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: all_gather(other, whole[:each], group=group),
        "reduce_scatter": lambda: reduce_scatter(other[:each], whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, src=first, group=group),
        "reduce": lambda: dist.reduce(whole, dst=first, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "gather": lambda: dist.gather(whole[:each], parts, dst=first, group=group),
        "scatter": lambda: dist.scatter(whole[:each], parts, src=first, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    if op != "send":
        return calls[op]
    if rank == first:
        return lambda: dist.send(whole, last, group=group)
    if rank == last:
        return lambda: dist.recv(whole, first, group=group)
    return lambda: None
