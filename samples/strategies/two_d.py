"""Two dimensions: FSDP2 across, tensor parallelism along the rows of a mesh.

The mesh has `dp` x `tp` ranks. First the matrices are spread over `tp`, then FSDP2 shards what each rank
holds over `dp`. With t ranks along `tp`, and a block of E elements of which N are norms, a step issues:

    on tp  the collectives of plain tensor parallelism, once for each `dp` rank: see `tensor_parallel`
    on dp  for each block: all_gather in forward, all_gather and reduce_scatter in backward, each of
           4 x ((E - N) / t + N) bytes; for the rest (embedding, last norm, head) one all_gather in forward,
           which is kept, and one reduce_scatter, each of 4 x rest bytes

Tensor parallelism divides the bytes of `dp` by t, all but those of the norms, which every `tp` rank holds
whole and gathers for itself. In `sequence` the norms' gradients are partial along `tp`; here no optimizer
stumbles over them, because FSDP2 reduces each before it scatters: 2 L + 1 small all_reduces in backward.
Where should the ranks go? `tp` stands in the way of the step many times, `dp` can hide behind computing: keep
`tp` inside a node.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.two_d --variant prepared
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.tensor_parallel import Shards, shard_prepared, shard_sequence
from shardtoll.samples.strategies.transformer import loss_of

TENSOR_RANKS: Final = 2


def two_d(shard: Shards) -> common.Build:
    """Return what builds the job of a variant: two ranks along `tp`, the others along `dp`."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        shape = (dist.get_world_size() // TENSOR_RANKS, TENSOR_RANKS)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))
        model = options.model(device)
        shard(model, mesh["tp"])
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            # The ranks of a `tp` row share a batch.
            batch = options.batch(number, device, rank=mesh.get_local_rank("dp"))
            loss = loss_of(model(batch.tokens), batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return common.Job(model, step)

    return build


VARIANTS: Final[Mapping[str, common.Build]] = {
    "prepared": two_d(shard_prepared),
    "sequence": two_d(shard_sequence),
}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
