"""Gradient accumulation under FSDP2 that reduces the gradients of every micro-batch.

Four micro-batches make one optimizer step. FSDP2 reduces and scatters in every backward unless it is told to
wait, so three of four reductions only carry what the next one could have carried too. Waiting is paid in
memory: until the last micro-batch each rank keeps its whole gradients.

https://github.com/nvidia-cosmos/cosmos-framework/issues/161

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.accum_sync
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
BLOCKS: Final = 2
DIM: Final = 64
TOKENS: Final = 32
MICRO_BATCHES: Final = 4
STEPS: Final = 2


def build(fixed: bool) -> Program:
    """Return a model sharded block by block, and two steps of four micro-batches each."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    blocks = [nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.GELU()) for _ in range(BLOCKS)]
    for each in blocks:
        fully_shard(each, mesh=mesh)
    model = nn.Sequential(*blocks, nn.Linear(DIM, DIM, bias=False))
    sharded = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                for micro_batch in range(MICRO_BATCHES):
                    batch, target = torch.randn(2, TOKENS, DIM, generator=generator)
                    if fixed:
                        sharded.set_requires_gradient_sync(micro_batch == MICRO_BATCHES - 1)
                    loss = nn.functional.mse_loss(model(batch), target) / MICRO_BATCHES
                    loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="accum_sync",
    source="cosmos-framework#161",
    ranks=RANKS,
    build=build,
    expected=(
        Expected(
            "sync-every-microbatch",
            "FSDP.post_backward",
            bytes=(MICRO_BATCHES - 1) * (BLOCKS + 1) * DIM * DIM * 4,
            says=("3 of 4", "set_requires_gradient_sync", "memory"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
