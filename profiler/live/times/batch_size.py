"""How much a batch of a DataLoader holds, and how many ranks share its data set out among them.

Only shapes are read, never values. Unknown facts stay None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch

from shardtoll.profiler.live.cause.pending import BatchSize

_DEEP: Final = 4
_MOST: Final = 64
"""Parts of a batch that are looked at: a list of strings may be long."""
_TOKENS_DIMENSIONS: Final = 2
_WHOLE: Final = (torch.int64, torch.int32)


def batch_size(iterator: Any, batch: Any) -> BatchSize:
    """Return the size of what a DataLoader's iterator has just given."""
    if not torch.is_grad_enabled():
        return BatchSize(None, None, None)
    # The batch sampler, or without automatic batching the sampler of whole batches.
    batches = getattr(iterator, "_index_sampler", None)
    asked = getattr(batches, "batch_size", None)
    tensors = [tensor for tensor in _tensors(batch) if tensor.dim() > 0]
    samples = None
    if tensors:
        samples = _samples(tensors[0], asked if isinstance(asked, int) else None)
    tokens = next((t.numel() for t in tensors if t.dim() == _TOKENS_DIMENSIONS and t.dtype in _WHOLE), None)
    return BatchSize(samples, tokens, _data_ranks(batches))


def _samples(tensor: torch.Tensor, asked: int | None) -> int:
    """Return the samples in a batch's first tensor; `asked`: how many the loader asks its data set for.

    A loader may put another dimension first, as sequence-first models want it. The last batch may be smaller.
    """
    first = int(tensor.shape[0])
    return first if asked is None or (first <= asked and asked not in tensor.shape) else asked


def _data_ranks(batches: Any) -> int | None:
    """Return what a `DistributedSampler`, or one made like it, says about the number of its parts."""
    sampler = batches
    for _ in range(_DEEP):
        for name in ("num_replicas", "num_processes"):
            parts = getattr(sampler, name, None)
            if isinstance(parts, int) and parts > 0:
                return parts
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
    return None


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in a batch in their order, of its first parts only."""
    parts: list[tuple[Any, int]] = [(batch, 0)]
    for _ in range(_MOST):
        if not parts:
            return
        part, depth = parts.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif depth < _DEEP:
            parts += [(inner, depth + 1) for inner in reversed(_inside(part))]


def _inside(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return [part[key] for _, key in zip(range(_MOST), part, strict=False)]
    if isinstance(part, (list, tuple)):
        return list(part[:_MOST])
    if is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, item.name, None) for item in fields(part)[:_MOST]]
    return []
