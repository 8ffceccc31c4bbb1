"""Three dimensions: a pipeline whose stages are spread over FSDP2 across and tensor parallelism along.

The mesh has `pp` x `dp` x `tp` ranks. With s sequences a micro-batch, and a stage of L layers, a step of one
rank issues

    on tp  for each micro-batch and layer 2 all_reduces forward and 2 backward of 4 x s x tokens x dim bytes
    on pp  for each micro-batch and boundary a send or a recv forward and one backward, of as many bytes
    on dp  for each layer, and for what else the stage holds, one all_gather and one reduce_scatter

Micro-batches multiply what `tp` and `pp` do. They need not multiply what `dp` does: with
`reshard_after_forward=False` a stage is gathered once and kept for all of them, and the schedule has FSDP2
reduce gradients after the last one only. With FSDP2's default, every micro-batch gathers again.

torch (2.13) starts that last reduction outside of autograd, in `perform_reduce_grad`; it is backward all the
same, and recorded as such.

    torchrun --nproc-per-node 8 -m shardtoll.samples.strategies.three_d --variant 1f1b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.pipeline import cut, run_schedule
from shardtoll.samples.strategies.tensor_parallel import shard_prepared
from shardtoll.samples.strategies.transformer import loss_of

DATA_RANKS: Final = 2
TENSOR_RANKS: Final = 2


def three_d(kind: Any) -> common.Build:
    """Return what builds the job of a schedule: two ranks along `dp` and `tp`, the others along `pp`."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        stages = dist.get_world_size() // (DATA_RANKS * TENSOR_RANKS)
        shape = (stages, DATA_RANKS, TENSOR_RANKS)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        place = mesh.get_local_rank("pp")
        model = cut(options.model(device), place, stages)
        shard_prepared(model, mesh["tp"])
        # Gathered once per step, not once a micro-batch.
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
        stage = PipelineStage(model, place, stages, device, group=mesh.get_group("pp"))
        schedule = kind(stage, n_microbatches=options.sequences, loss_fn=loss_of)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device, rank=mesh.get_local_rank("dp"))
            loss = run_schedule(schedule, batch, first=place == 0, last=place == stages - 1)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return common.Job(nn.ModuleDict({f"stage{place}": model}), step)

    return build


VARIANTS: Final[Mapping[str, common.Build]] = {
    "gpipe": three_d(ScheduleGPipe),
    "1f1b": three_d(Schedule1F1B),
}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
