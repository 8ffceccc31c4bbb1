"""Gradient clipping that asks one small DTensor after another for its norm.

A model of many small layers is sharded with FSDP2, and its training loop clips gradients by a norm of its
own: `gradient.norm().full_tensor()` for each parameter. The norm of a sharded gradient is a sum over ranks,
so each costs an all_reduce of one number, whose time is all latency, and the optimizer waits for all of them
in turn (pytorch#128317: clipping and un-fused optimizers over many DTensors).

The bill has to say how many reductions there are, how small they are, that they belong to the optimizer's
phase, and what to write instead. The mended twin calls `clip_grad_norm_`, which stacks the local norms and
reduces them in one message.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.clip_many
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

LAYERS: Final = 60
PARAMETERS: Final = 2 * LAYERS
"""A weight and a bias each."""
WIDTH: Final = 16
NUMBER_BYTES: Final = 4
MOST: Final = 1.0
STEPS: Final = 2
LEAST_REDUCTION_NS: Final = 20_000
"""Two processes do not agree on a number any faster through gloo."""
MOST_REDUCTION_NS: Final = 20_000_000


def clip_one_by_one(model: nn.Module) -> None:
    """Clip by the norms of one gradient after another."""
    gradients = [p.grad for p in model.parameters() if isinstance(p.grad, DTensor)]
    norms = [gradient.norm().full_tensor() for gradient in gradients]
    factor = (MOST / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.to_local().mul_(factor)


def build(fixed: bool) -> Program:
    """Return the program; mended, it clips as the library does."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    fully_shard(model, mesh=mesh)
    # Each rank has data of its own.
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        model(torch.randn(4, WIDTH)).square().mean().backward()
        if fixed:
            clip_grad_norm_(model.parameters(), MOST)
        else:
            clip_one_by_one(model)
        optimizer.step()
        optimizer.zero_grad()

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                step()

    step()
    return Program(model, train)


INCIDENT = Incident(
    name="clip_many",
    source="https://github.com/pytorch/pytorch/issues/128317",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "latency-bound",
            place="clip_many.py:45",
            bytes=PARAMETERS * NUMBER_BYTES,
            toll_ns=(PARAMETERS * LEAST_REDUCTION_NS, PARAMETERS * MOST_REDUCTION_NS),
            says=(f"{PARAMETERS} small all_reduces", "in optimizer", "foreach=True", "clip_grad_norm_"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
