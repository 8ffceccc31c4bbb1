"""The data loader is slower than the step, and every rank stands still until its batch is there.

Each sample takes 10 ms to decode: here it sleeps, in real jobs it opens a file, unpacks an image, waits for a
disk far away. The loader decodes in the training process (`num_workers=0`, its default), so a batch of four
samples keeps the rank for 40 ms *between* two steps: no timer around the step sees it, and no collective is
slow. It is told in the article on mistakes in distributed training that this project started from.

The bill has to say which share of the time from step to step is waiting for data, and on which ranks. The
mended twin decodes once, before training; worker processes that fetch ahead are the other way.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.slow_loader
"""

from __future__ import annotations

import time
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

DECODE_S: Final = 0.01
BATCH: Final = 4
SAMPLES: Final = 32
WIDTH: Final = 64


class Samples(Dataset[torch.Tensor]):
    """Samples that have to be decoded, each time or once."""

    def __init__(self, *, decoded: bool) -> None:
        self._coded: list[torch.Tensor] = list(torch.randn(SAMPLES, WIDTH))
        self._decoded = self._coded if decoded else None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._decoded is not None:
            return self._decoded[index]
        time.sleep(DECODE_S)
        return self._coded[index]


def build(fixed: bool) -> Program:
    """Return the program; mended, its samples are decoded before training."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    # Each rank has data of its own.
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Samples(decoded=fixed)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(session: Session) -> None:
        for batch in loader:
            with session.step():
                step(batch)

    # DDP lays its buckets out anew in its second step.
    for _ in range(2):
        step(torch.randn(BATCH, WIDTH))
    return Program(model, train)


INCIDENT = Incident(
    name="slow_loader",
    source="the article on mistakes in distributed training",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "data-stall",
            place="slow_loader.py",
            toll_ns=(round(BATCH * DECODE_S * 1e9), round(4 * BATCH * DECODE_S * 1e9)),
            says=("ranks 0-1", "between steps", "num_workers"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
