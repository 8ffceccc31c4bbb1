"""The ranks of a gradient check: their messages to each other, and how they fail together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.backends import named_backend

T = TypeVar("T")


class Ranks:
    """The ranks of the default process group, or one rank if there is none.

    Every method that talks is a collective: all ranks call it, in the same order.
    """

    def __init__(self) -> None:
        self.distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.distributed else 0
        self.size = dist.get_world_size() if self.distributed else 1
        self.backend = named_backend() if self.distributed else None

    def gather(self, item: T) -> list[T]:
        """Return what every rank gave, by rank."""
        if not self.distributed:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def agree(self, problem: UsageError | None, *, name_rank: bool = True) -> None:
        """Raise on every rank when any rank has a problem; the first such rank's text is given.

        The text names the rank when not all ranks have the same problem, unless `name_rank` is False. A
        rank that raised alone would leave the others waiting in the next collective.
        """
        gathered = self.gather(None if problem is None else (problem.message, problem.hint))
        first = next((rank for rank, text in enumerate(gathered) if text is not None), None)
        if first is None:
            return
        message, hint = gathered[first] or ("", "")
        alike = all(text == gathered[first] for text in gathered)
        raise UsageError(message if alike or not name_rank else f"rank {first}: {message}", hint) from problem

    def sent(
        self,
        tensor: torch.Tensor | None,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        source: int = 0,
    ) -> torch.Tensor:
        """Return rank `source`'s `tensor` on every rank, on `device`; shape and dtype are known to all."""
        if self.rank == source:
            assert tensor is not None
            sent = tensor.detach().to(device=device, dtype=dtype).contiguous()
        else:
            sent = torch.empty(tuple(shape), dtype=dtype, device=device)
        if self.distributed and sent.numel():
            dist.broadcast(sent, src=source)
        return sent
