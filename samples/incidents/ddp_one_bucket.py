"""DDP with one bucket as large as the model: nothing is reduced before backward is over.

DDP reduces a bucket of gradients as soon as the last of them is there, while backward goes on with earlier
layers. With `bucket_cap_mb` above the size of the model (somebody wanted "fewer, larger messages") all
gradients are in one bucket, whose last gradient is also the last of backward: the whole reduction is exposed.

The bill has to say that nothing overlaps, and to name a bucket size with what it saves. The mended twin has
a bucket a layer; only the last one has nothing left to hide behind.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.ddp_one_bucket
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

LAYERS: Final = 8
WIDTH: Final = 1024
BATCH: Final = 64
FLOAT_BYTES: Final = 4
MODEL_BYTES: Final = LAYERS * WIDTH * WIDTH * FLOAT_BYTES
STEPS: Final = 3
LEAST_RATE: Final = 20e6
MOST_RATE: Final = 50e9
"""Bytes a second: no loopback is slower, none is faster."""


def build(fixed: bool) -> Program:
    """Return the program; mended, it has a bucket a layer."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=4 if fixed else 1000)
    # Each rank has data of its own.
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                step()

    # DDP lays its buckets out anew in its second step.
    step()
    step()
    return Program(model, train)


INCIDENT = Incident(
    name="ddp_one_bucket",
    source="practice with DistributedDataParallel",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "exposed-communication",
            place="0.weight",
            bytes=MODEL_BYTES,
            toll_ns=(round(MODEL_BYTES / MOST_RATE * 1e9), round(MODEL_BYTES / LEAST_RATE * 1e9)),
            says=("nothing overlaps", "bucket_cap_mb"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
