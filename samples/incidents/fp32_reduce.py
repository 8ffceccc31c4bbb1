"""The model computes in bf16, its gradients are summed in fp32: twice the bytes, for digits few models need.

`reduce_dtype=torch.float32` stands in many recipes, some of them because it was the default there. On a
fast network nobody notices. Where the reduction is exposed it costs half of its time; whether bf16 sums are
good enough for a model is a question of numerics that somebody has to answer once.

With E elements of parameters, two ranks' reduce_scatters move 4 E bytes per step and 2 E would do.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.fp32_reduce

See https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (MixedPrecisionPolicy).
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

DIM = 128
LAYERS = 3
ROWS = 32
STEPS = 2
BF16_BYTES = 2


def build(fixed: bool) -> Program:
    """Return the program; mended, gradients travel in the format they were computed in."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = nn.Sequential(*(nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS)))
    reduce_dtype = torch.bfloat16 if fixed else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return Program(model, partial(train, model))


def train(model: nn.Module, session: Session) -> None:
    """Train on noise, each rank on its own."""
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    session.expect_steps()
    for number in range(STEPS + 1):
        x = torch.randn(ROWS, DIM, generator=generator)
        if number == 0:
            # The first step connects and plans; it is not looked at.
            step(model, optimizer, x)
            continue
        with session.step():
            step(model, optimizer, x)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Forward, backward, update."""
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


INCIDENT = Incident(
    name="fp32_reduce",
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "wide-dtype",
            "fp32_reduce.py",
            # What bf16 spares: half of 4 bytes an element.
            bytes=BF16_BYTES * LAYERS * DIM * DIM,
            says=("bfloat16", "numerics", "reduce_dtype=torch.bfloat16"),
        ),
    ),
    checks=("gradients", "replicas"),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
