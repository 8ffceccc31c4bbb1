"""Gradient accumulation: several micro-batches, one optimizer step, and one reduction if asked for.

Reducing after every micro-batch is right and costs MICRO_BATCHES times what is needed. DDP has to be told
with `no_sync()` around all micro-batches but the last. FSDP2 has to be told with
`set_requires_gradient_sync(False)`: gradients then stay whole in memory until the last backward. It still
gathers the parameters again for every micro-batch; `set_reshard_after_backward(False)` keeps them after a
backward and so saves the gathers of the next forward, not those of its backward.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.accumulation --variant fsdp2_last
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from shardtoll.samples.strategies import common, ddp, fsdp2
from shardtoll.samples.strategies.transformer import loss_of

MICRO_BATCHES: Final = 3


def _accumulated(
    options: common.Options,
    device: torch.device,
    model: nn.Module,
    around: Callable[[bool], AbstractContextManager[None]],
) -> common.Job:
    """Return the job; `around(last)` is entered around each micro-batch."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for micro in range(MICRO_BATCHES):
            batch = options.batch(number * MICRO_BATCHES + micro, device)
            with around(micro == MICRO_BATCHES - 1):
                loss = loss_of(model(batch.tokens), batch.targets) / MICRO_BATCHES
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return common.Job(model, step)


def _always(_: bool) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def ddp_every(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that reduces gradients on every micro-batch."""
    return _accumulated(options, device, ddp.wrapped(options, device), _always)


def ddp_last(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that reduces them on the last one."""
    model = ddp.wrapped(options, device)

    def around(last: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if last else model.no_sync()

    return _accumulated(options, device, model, around)


def fsdp2_every(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that reduces and scatters gradients on every micro-batch."""
    model = fsdp2.sharded(options.model(device), fsdp2.mesh_of(device))
    return _accumulated(options, device, model, _always)


def _told(
    options: common.Options, device: torch.device, tell: Callable[[FSDPModule, bool], None]
) -> common.Job:
    model = fsdp2.sharded(options.model(device), fsdp2.mesh_of(device))
    assert isinstance(model, FSDPModule)

    def around(last: bool) -> AbstractContextManager[None]:
        tell(model, last)
        return contextlib.nullcontext()

    return _accumulated(options, device, model, around)


def fsdp2_last(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that reduces and scatters them on the last one."""
    return _told(options, device, lambda model, last: model.set_requires_gradient_sync(last))


def fsdp2_keep(options: common.Options, device: torch.device) -> common.Job:
    """Return the same that also keeps the parameters it gathered until the last one's backward."""

    def tell(model: FSDPModule, last: bool) -> None:
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)

    return _told(options, device, tell)


VARIANTS: Final[dict[str, common.Build]] = {
    "ddp_every": ddp_every,
    "ddp_last": ddp_last,
    "fsdp2_every": fsdp2_every,
    "fsdp2_last": fsdp2_last,
    "fsdp2_keep": fsdp2_keep,
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
