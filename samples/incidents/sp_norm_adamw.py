"""Norms under sequence parallelism whose gradients AdamW reduces three times in a step.

`SequenceParallel` runs a norm on a part of the tokens of every sequence, so the gradient of its weight is a
pending sum over the ranks: Partial. Nothing reduces it in backward. The optimizer then reads it three times,
for its first moment and twice for its second, and DTensor reduces it on each read, 4 x DIM bytes a time. To
redistribute the gradient once before `step()` does it with one.

Found by this project with torch 2.13, in the tensor parallelism that PyTorch's documentation recommends.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.sp_norm_adamw
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
BLOCKS: Final = 2
DIM: Final = 64
TOKENS: Final = 16
STEPS: Final = 3
READS: Final = 3
"""Times that AdamW reads a gradient."""
TENSORS: Final = 2
"""A norm's parameters: weight and bias."""


class Block(nn.Module):
    """A norm, with a bias as LayerNorm has, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens of the shape given, [batch, tokens, dim]."""
        y: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + y


def shard(model: nn.Module) -> None:
    """Spread the matrices over the ranks; norms and residuals work on a part of the tokens."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in model.children():
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, plan)


def build(fixed: bool) -> Program:
    """Return the model, and three steps of AdamW on it."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(0)

    def train(session: Session) -> None:
        for _ in range(STEPS):
            batch = torch.randn(2, TOKENS, DIM, generator=generator).chunk(RANKS, dim=1)[dist.get_rank()]
            with session.step():
                model(batch).square().mean().backward()
                if fixed:
                    for parameter in model.parameters():
                        if isinstance(parameter.grad, DTensor):
                            placements = parameter.placements  # type: ignore[attr-defined]
                            parameter.grad = parameter.grad.redistribute(placements=placements)
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="sp_norm_adamw",
    source="found here, torch 2.13",
    ranks=RANKS,
    build=build,
    expected=(
        # Both facts on one line: nobody asked for the second moment's two reads, and they repeat the first's.
        Expected(
            "implicit-redistribute",
            "norm",
            bytes=(READS - 1) * TENSORS * BLOCKS * DIM * 4,
            says=(
                f"; all {(READS - 1) * TENSORS * BLOCKS} redundant: repeats bytes that this step had sent",
                "p.grad.redistribute(placements=p.placements)",
            ),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
