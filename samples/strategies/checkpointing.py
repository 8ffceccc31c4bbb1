"""Activation checkpointing: blocks run their forward again in backward instead of keeping activations.

It is paid in compute: the matmuls of every block a second time, in the phase `recompute`. Whether it also
costs communication depends on what is wrapped in what. Under DDP nothing is sent again. FSDP2 gathers a
block for its backward anyway, before the recompute, which then uses what is there: the same 2 all_gathers,
whether the block is called through `checkpoint` (`called`), was wrapped before it was sharded (`wrapped`)
or after (`wrapper`). When several blocks share one checkpoint (`segment`) and it is of the reentrant kind,
the recompute comes before the earlier blocks' turn, and gathers them itself: as many bytes, but in the phase
`recompute`, where nothing was prefetched and nothing hides it.

`reentrant` is torch's older kind, `non_reentrant` the one to use.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.checkpointing --variant segment_reentrant
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardtoll.samples.strategies import common, ddp, fsdp2
from shardtoll.samples.strategies.transformer import Sizes, Transformer


class Called(Transformer):
    """The transformer that calls its blocks through `checkpoint`, one by one or all in one."""

    def __init__(self, sizes: Sizes, seed: int, *, reentrant: bool, at_once: bool = False) -> None:
        super().__init__(sizes, seed)
        self.reentrant = reentrant
        self.at_once = at_once

    def _segment(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, tokens, vocab] for tokens [batch, tokens]."""
        assert self.embed is not None
        assert self.norm is not None
        assert self.head is not None
        x = self.embed(x) + self.positions[: x.shape[1]]
        for part in [self._segment] if self.at_once else self.blocks.values():
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def _trained(options: common.Options, device: torch.device, model: nn.Module) -> common.Job:
    return common.plain_job(options, device, model, torch.optim.AdamW(model.parameters()))


def under_ddp(options: common.Options, device: torch.device, reentrant: bool) -> common.Job:
    """Return DDP around blocks that are called through `checkpoint`."""
    inner = Called(options.sizes, options.seed, reentrant=reentrant).to(device)
    choices: dict[str, Any] = {ddp.FORWARD_BUFFERS: False, "bucket_cap_mb": ddp.SMALL_BUCKET_MB}
    return _trained(options, device, DistributedDataParallel(inner, **choices))


def called(options: common.Options, device: torch.device, reentrant: bool) -> common.Job:
    """Return FSDP2 whose sharded blocks are called through `checkpoint`."""
    model = Called(options.sizes, options.seed, reentrant=reentrant).to(device)
    return _trained(options, device, fsdp2.sharded(model, fsdp2.mesh_of(device)))


def segment(options: common.Options, device: torch.device, reentrant: bool) -> common.Job:
    """Return FSDP2 whose sharded blocks share one checkpoint."""
    model = Called(options.sizes, options.seed, reentrant=reentrant, at_once=True).to(device)
    return _trained(options, device, fsdp2.sharded(model, fsdp2.mesh_of(device)))


def _wrap(block: nn.Module, reentrant: bool) -> nn.Module:
    kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    wrapped: nn.Module = checkpoint_wrapper(block, checkpoint_impl=kind)
    return wrapped


def wrapped(options: common.Options, device: torch.device, reentrant: bool) -> common.Job:
    """Return FSDP2 around blocks that were wrapped for checkpointing first: sharding outside."""
    model = options.model(device)
    for name, block in model.blocks.items():
        model.blocks[name] = _wrap(block, reentrant)
    return _trained(options, device, fsdp2.sharded(model, fsdp2.mesh_of(device)))


def wrapper(options: common.Options, device: torch.device, reentrant: bool) -> common.Job:
    """Return the other order: each block is sharded, then wrapped."""
    model, mesh = options.model(device), fsdp2.mesh_of(device)
    for name, block in model.blocks.items():
        fully_shard(block, mesh=mesh)
        model.blocks[name] = _wrap(block, reentrant)
    fully_shard(model, mesh=mesh)
    return _trained(options, device, model)


_BUILDS: Final[dict[str, Callable[..., common.Job]]] = {
    "ddp": under_ddp,
    "called": called,
    "wrapped": wrapped,
    "wrapper": wrapper,
    "segment": segment,
}

VARIANTS: Final[dict[str, common.Build]] = {
    f"{name}_{kind}": partial(build, reentrant=kind == "reentrant")
    for kind in ("non_reentrant", "reentrant")
    for name, build in _BUILDS.items()
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
