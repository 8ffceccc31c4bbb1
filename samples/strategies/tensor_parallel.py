"""Tensor parallelism through `parallelize_module`: what each style issues, and which plan asks for less.

Every rank holds a part of each matrix and all ranks share a batch. With A = 4 x sequences x tokens x dim
bytes of activations, and L layers, a step issues on the mesh dimension `tp`, whatever the number of ranks:

    variant      forward                        backward                          optimizer
    tensor       2 L all_reduce of A            4 L all_reduce of A
    prepared     2 L all_reduce of A            2 L all_reduce of A
    sequence     1 all_reduce of A (embedding), 2 L + 1 reduce_scatter of A,      2 L + 1 all_reduce
                 2 L + 1 all_gather and         2 L + 1 all_gather of A           of 4 x dim (the norms)
                 2 L reduce_scatter of A, 1
                 all_gather of the logits
    loss         2 L all_reduce of A, 3 of      4 L + 1 all_reduce of A
                 4 x sequences x tokens

tensor: `ColwiseParallel` reduces the gradient of its own input. The query, key and value projections share
their input and do not know it: three all_reduces where one would do.
prepared: `PrepareModuleInput` on the attention makes its input a DTensor once. The three gradients add up
while they are still partial, and are reduced together: a third of the bytes of attention's backward.
sequence: `SequenceParallel` norms work on a part of each sequence, so activations are gathered before and
scattered after the matrices: the same bytes as `prepared`, less memory. The norms' gradients stay partial;
the optimizer cannot take that and has DTensor reduce them: implicit, tiny, one for each norm (AdamW: three).
loss: the logits stay sharded by vocabulary (`loss_parallel`); three small reductions replace their gather.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.tensor_parallel --variant sequence
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import Transformer, loss_of

Shards = Callable[[Transformer, DeviceMesh], None]
"""Spreads the model over the ranks of a mesh, in place."""


def matrices() -> dict[str, ParallelStyle]:
    """Return the plan of Megatron for the matrices of a block: into the heads or the width, and back."""
    plan: dict[str, ParallelStyle] = {"attention.wo": RowwiseParallel(), "ffn.down": RowwiseParallel()}
    for name in ("attention.wq", "attention.wk", "attention.wv", "ffn.up"):
        plan[name] = ColwiseParallel()
    return plan


def shard_tensor(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread the matrices of the blocks; everything else is the same on all ranks."""
    for block in model.blocks.values():
        parallelize_module(block, mesh, matrices())


def shard_prepared(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread the matrices, and have attention's input distributed once for its three users."""
    for block in model.blocks.values():
        once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        parallelize_module(block, mesh, {**matrices(), "attention": once})


def shard_sequence(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread the matrices; between them, norms and residuals work on a part of every sequence."""
    for block in model.blocks.values():
        plan = matrices()
        for part, last in (("attention", "wo"), ("ffn", "down")):
            plan[f"{part}_norm"] = SequenceParallel()
            plan[part] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
            plan[f"{part}.{last}"] = RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(block, mesh, plan)
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        # The first block's input is cut without communication; its gradient has to be gathered.
        "blocks.0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    whole = PrepareModuleOutput(output_layouts=Shard(-1), desired_output_layouts=Replicate())
    parallelize_module(model, mesh, {"head": whole})


def shard_loss(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread the matrices of the blocks, and the head by vocabulary: the logits stay in parts."""
    shard_tensor(model, mesh)
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"head": head})


def tensor_parallel(shard: Shards, *, sharded_loss: bool = False) -> common.Build:
    """Return what builds the job of a variant: all ranks on one mesh dimension, one batch for all."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
        model = options.model(device)
        shard(model, mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device, rank=0)
            with loss_parallel() if sharded_loss else contextlib.nullcontext():
                loss = loss_of(model(batch.tokens), batch.targets)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            # Every rank holds the whole loss already; as a DTensor it says so.
            return loss.to_local().detach() if isinstance(loss, DTensor) else loss.detach()

        return common.Job(model, step)

    return build


VARIANTS: Final[Mapping[str, common.Build]] = {
    "tensor": tensor_parallel(shard_tensor),
    "prepared": tensor_parallel(shard_prepared),
    "sequence": tensor_parallel(shard_sequence),
    "loss": tensor_parallel(shard_loss, sharded_loss=True),
}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
