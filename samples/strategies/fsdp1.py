"""FSDP1 (`FullyShardedDataParallel`): each unit's parameters lie in one flat tensor, sharded over the ranks.

Two blocks and a root make three units. `full_shard` gathers each unit in forward and, but for the root,
again in backward, and reduces and scatters its flat gradient: as FSDP2 does, padded to a
multiple of the ranks. `shard_grad_op` keeps what it gathered: no second all_gather. `hybrid` shards
within pairs and adds an all_reduce of each shard across pairs; `mixed_precision` halves every message.

Without an accelerator torch refuses FSDP1 ("FSDP needs a non-CPU accelerator device") unless the device is
named, as here by `device_id`. New code should use `fsdp2` anyway.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.fsdp1 --variant shard_grad_op
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import Block

NEAR: Final = 2
"""Ranks within which `hybrid` shards."""


def wrapped(options: common.Options, device: torch.device, **choices: Any) -> FullyShardedDataParallel:
    """Return the transformer with each block in a unit of its own, and the rest in the root's."""
    return FullyShardedDataParallel(
        options.model(device),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=True,
        device_id=device,
        **choices,
    )


def _trained(options: common.Options, device: torch.device, **choices: Any) -> common.Job:
    model = wrapped(options, device, **choices)
    return common.plain_job(options, device, model, torch.optim.AdamW(model.parameters()))


def hybrid(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP1 on two dims: shards within pairs, replicas of them across pairs."""
    shape = (dist.get_world_size() // NEAR, NEAR)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    return _trained(options, device, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


_BF16: Final = MixedPrecision(torch.bfloat16, torch.bfloat16, buffer_dtype=torch.bfloat16)

VARIANTS: Final[dict[str, common.Build]] = {
    "full_shard": _trained,
    "shard_grad_op": partial(_trained, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "hybrid": hybrid,
    "mixed_precision": partial(_trained, mixed_precision=_BF16),
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
