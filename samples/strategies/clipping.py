"""Gradient clipping: the norm of a sharded gradient is a sum over ranks.

Under DDP every rank holds whole gradients, and clipping moves nothing. Under FSDP2 gradients are DTensors:
`clip_grad_norm_` stacks the local norms first, so that DTensor reduces them in one all_reduce of 4 bytes a
parameter, hidden in `aten.linalg_vector_norm`. Asking each gradient for its norm instead costs one all_reduce
of 4 bytes for each parameter (`each`), hundreds of them in a real model; adding up by hand
first takes a single one of 4 bytes (`by_hand`).

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.clipping --variant each
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from shardtoll.samples.strategies import common, ddp, fsdp2
from shardtoll.samples.strategies.transformer import loss_of

MOST: Final = 1.0
Clip = Callable[[nn.Module], object]


def _clipped(
    options: common.Options, device: torch.device, *, clip: Clip, sharded: bool = True
) -> common.Job:
    model: nn.Module = ddp.wrapped(options, device)
    if sharded:
        model = fsdp2.sharded(options.model(device), fsdp2.mesh_of(device))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> torch.Tensor:
        batch = options.batch(number, device)
        loss = loss_of(model(batch.tokens), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        clip(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return common.Job(model, step)


def library(model: nn.Module) -> torch.Tensor:
    """Clip as everybody does; returns the norm before."""
    return clip_grad_norm_(model.parameters(), MOST)


def _gradients(model: nn.Module) -> list[DTensor]:
    return [p.grad for p in model.parameters() if isinstance(p.grad, DTensor)]


def _scale(gradients: list[DTensor], norm: torch.Tensor) -> torch.Tensor:
    factor = (MOST / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.to_local().mul_(factor)
    return norm


def each(model: nn.Module) -> torch.Tensor:
    """Clip by the norms of one gradient after another."""
    gradients = _gradients(model)
    norms = [gradient.norm().full_tensor() for gradient in gradients]
    return _scale(gradients, torch.stack(norms).norm())


def by_hand(model: nn.Module) -> torch.Tensor:
    """Add up the squares of what is here, then reduce one number."""
    gradients = _gradients(model)
    total = torch.stack([gradient.to_local().square().sum() for gradient in gradients]).sum()
    dist.all_reduce(total)
    return _scale(gradients, total.sqrt())


VARIANTS: Final[dict[str, common.Build]] = {
    "library": partial(_clipped, clip=library),
    "each": partial(_clipped, clip=each),
    "by_hand": partial(_clipped, clip=by_hand),
    "ddp": partial(_clipped, clip=library, sharded=False),
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
