"""FSDP1's flat parameters taken apart: which piece of which parameter a rank's shard holds.

A flat parameter is all parameters of a wrapped module, flattened and laid end to end, cut evenly over the
ranks. A rank's part of one parameter is a run of its elements, often none. With use_orig_params the module
shows such runs as parameters, without it the flat parameter alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.cause.backends import named_backend


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A run of a flattened parameter's elements."""

    start: int
    stop: int
    group: Any
    """Ranks whose runs make up the whole; None if each has the whole."""

    def whole(self, piece: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the parameter put together of all ranks' runs; a collective over the group."""
        if self.group is None:
            return piece.detach().reshape(shape)
        where = torch.device("cuda", torch.cuda.current_device()) if _sends_cuda(self.group) else piece.device
        full = torch.zeros(shape, dtype=piece.dtype, device=where)
        full.view(-1)[self.start : self.stop] = piece.detach().to(where)
        if full.numel():
            # Adding zeros changes no value: each element is held once.
            dist.all_reduce(full, group=self.group)
        return full


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One parameter's part of one rank's flat shard."""

    weight: torch.Tensor
    gradient: torch.Tensor | None
    shape: tuple[int, ...]
    trained: bool
    identity: int
    flat: Flat
    gradient_whole: bool


def _sends_cuda(group: Any) -> bool:
    backend = named_backend(group)
    return "nccl" in backend and "cpu" not in backend


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether the parameter is FSDP1's, of a whole module."""
    return isinstance(tensor, FlatParameter)


def pieces_of(root: nn.Module) -> Iterator[tuple[str, Piece]]:
    """Return the pieces of all flat parameters below `root`, tied ones under each of their names."""
    for prefix, module in root.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
        if handle is None:
            continue
        inner = f"{prefix}._fsdp_wrapped_module." if prefix else "_fsdp_wrapped_module."
        pieces = list(_of_handle(handle))
        flat: Any = handle.flat_param
        by_place: dict[tuple[str, int], Piece] = {}
        for info, piece in zip(flat._param_infos, pieces, strict=True):
            by_place[info.param_name, id(info.module)] = piece
            yield inner + _name(info.module_name, info.param_name), piece
        for info in flat._shared_param_infos:
            piece = by_place[info.prim_param_name, id(info.prim_module)]
            yield inner + _name(info.module_name, info.param_name), piece


def _name(module_name: str, parameter: str) -> str:
    return f"{module_name}.{parameter}" if module_name else parameter


def _of_handle(handle: Any) -> Iterator[Piece]:
    flat: Any = handle.flat_param
    if any(extension is not None for extension in getattr(flat, "_param_extensions", ())):
        raise UsageError(
            f"FSDP1 has flattened the local shards of DTensors ({', '.join(flat._fqns[:3])})",
            "on top of tensor parallelism use fully_shard (FSDP2), whose gradients can be compared",
        )
    sharded = bool(handle.uses_sharded_strategy)
    shard = (flat._local_shard if sharded else flat).detach()
    gradient = flat.grad
    unsynced = sharded and gradient is not None and gradient.numel() > shard.numel()
    begin = 0
    starts: list[int] = []
    for size, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=False):
        if not padding:
            starts.append(begin)
        begin += size
    for number, (shape, numel) in enumerate(zip(flat._shapes, flat._numels, strict=True)):
        original = flat._params[number] if handle._use_orig_params else None
        start, stop, offset = 0, numel, starts[number]
        if sharded:
            info = flat._shard_param_infos[number]
            start, stop, offset = 0, 0, 0
            if info.in_shard:
                start, stop = info.intra_param_start_idx, info.intra_param_end_idx + 1
                offset = info.offset_in_shard
        mine: torch.Tensor | None = None
        if original is not None:
            mine = None if original.grad is None else original.grad.detach().reshape(-1)
        elif gradient is not None:
            first, count = (starts[number], numel) if unsynced else (offset, stop - start)
            mine = gradient.detach().reshape(-1)[first : first + count]
        yield Piece(
            weight=shard.reshape(-1)[offset : offset + stop - start],
            gradient=mine.reshape(shape) if unsynced and mine is not None and mine.numel() == numel else mine,
            shape=tuple(shape),
            trained=bool(flat.requires_grad if original is None else original.requires_grad),
            identity=id(flat._param_infos[number]),
            flat=Flat(start, stop, handle.process_group if sharded else None),
            gradient_whole=unsynced,
        )
