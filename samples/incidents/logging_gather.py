"""A sharded tensor gathered whole in every step, to log one number of it.

The model keeps a statistic for each of many codes, sharded over the ranks. The training loop logs its mean in
every step by `full_tensor().mean()`: each rank receives the whole to add it up, and waits for it. The mended
program adds up what it has, and lets the ranks add up one number, in every tenth step.

Practice

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.logging_gather
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
DIM: Final = 128
CODES: Final = 1 << 16
TOKENS: Final = 64
STEPS: Final = 4
LOGGED: Final = 10
"""One in so many steps is logged by the mended program."""


def build(fixed: bool) -> Program:
    """Return a perceptron, and steps that log the mean of a statistic sharded over the ranks."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    log: list[float] = []

    def train(session: Session) -> None:
        for number in range(1, STEPS + 1):
            batch = torch.randn(TOKENS, DIM, generator=generator)
            local = torch.randn(CODES // RANKS, generator=generator)
            with session.step():
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                used = DTensor.from_local(local, mesh, [Shard(0)])
                if not fixed:
                    log.append(used.full_tensor().mean().item())
                elif number % LOGGED == 0:
                    total = used.to_local().sum()
                    dist.all_reduce(total)
                    log.append(total.item() / CODES)

    return Program(model, train)


INCIDENT = Incident(
    name="logging_gather",
    source="practice",
    ranks=RANKS,
    build=build,
    expected=(
        Expected(
            "exposed-communication",
            # By its op, for the mended program reduces one number on the next line, which busy cores delay.
            "all_gather",
            bytes=CODES * 4,
            says=("logging_gather.py", "full_tensor", "if step % 100 == 0", "dist.all_reduce(total)"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
