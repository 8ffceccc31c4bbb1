"""FSDP2 (`fully_shard`): parameters are sharded, gathered for use and their gradients reduced and scattered.

Each block is gathered before its forward, and once more before its backward because it was thrown away in
between: 2 all_gathers and 1 reduce_scatter of the block's bytes. The root's own parameters (embedding, last
norm, head) are kept: 1 all_gather, 1 reduce_scatter. `reshard_false` keeps the blocks too and saves their
second all_gather for memory; `reshard_int` keeps them sharded within a small group, so that the second
all_gather moves less and stays near. `mixed_precision` gathers in bf16 and reduces in fp32, `hsdp` reduces
once more among the replicas, `prefetch` changes when, not what, and so does `cpu_offload`.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.fsdp2 --variant hsdp
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import Transformer

NEAR: Final = 2
"""Ranks within which `reshard_int` keeps the blocks' shards and `hsdp` shards."""


def mesh_of(device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks."""
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))


def sharded(model: Transformer, mesh: DeviceMesh, **choices: Any) -> Transformer:
    """Shard each block by itself, then what is left."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, **choices)
    fully_shard(model, mesh=mesh, **choices)
    return model


def _trained(options: common.Options, device: torch.device, model: Transformer) -> common.Job:
    return common.plain_job(options, device, model, torch.optim.AdamW(model.parameters()))


def reshard_true(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 as it comes: the root keeps its parameters until backward, blocks do not."""
    return _trained(options, device, sharded(options.model(device), mesh_of(device)))


def reshard_false(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that keeps gathered parameters until backward (ZeRO-2)."""
    model = sharded(options.model(device), mesh_of(device), reshard_after_forward=False)
    return _trained(options, device, model)


def reshard_int(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that goes back to shards of a small group after forward."""
    model = options.model(device)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh_of(device), reshard_after_forward=NEAR)
    fully_shard(model, mesh=mesh_of(device))
    return _trained(options, device, model)


def mixed_precision(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that computes and gathers in bf16 and reduces in fp32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _trained(options, device, sharded(options.model(device), mesh_of(device), mp_policy=policy))


def hsdp(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 on two dims: shards within a small group, replicas of them across groups."""
    shape = (dist.get_world_size() // NEAR, NEAR)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    return _trained(options, device, sharded(options.model(device), mesh))


def prefetch(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that asks for each block's parameters while the block before it runs."""
    model = sharded(options.model(device), mesh_of(device))
    blocks = [block for block in model.blocks.values() if isinstance(block, FSDPModule)]
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    return _trained(options, device, model)


def cpu_offload(options: common.Options, device: torch.device) -> common.Job:
    """Return FSDP2 that keeps its shards in host memory."""
    policy = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    model = sharded(options.model(torch.device("cpu")), mesh_of(device), offload_policy=policy)
    return _trained(options, device, model)


VARIANTS: Final[dict[str, common.Build]] = {
    "reshard_true": reshard_true,
    "reshard_false": reshard_false,
    "reshard_int": reshard_int,
    "mixed_precision": mixed_precision,
    "hsdp": hsdp,
    "prefetch": prefetch,
    "cpu_offload": cpu_offload,
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
