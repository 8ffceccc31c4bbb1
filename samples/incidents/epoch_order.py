"""Every epoch in the order of the first.

DistributedSampler shuffles by its seed and the number of the epoch, and nobody but the program knows that
number. Without `set_epoch` it is 0 for ever: the batches of each epoch are those of the first, in the same
order, with the same samples next to each other.

Source: a seed article of this project, on mistakes in distributed training; the documentation of
DistributedSampler warns of it.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.epoch_order
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

SAMPLES: Final = 128
BATCH: Final = 16
DIM: Final = 32
CLASSES: Final = 8
EPOCHS: Final = 2


def build(fixed: bool) -> Program:
    """Return the program; `fixed` tells the sampler which epoch it is."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, DIM), torch.randint(CLASSES, (SAMPLES,)))
    sampler: DistributedSampler[int] = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, CLASSES)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(session: Session) -> None:
        for epoch in range(EPOCHS):
            if fixed:
                sampler.set_epoch(epoch)
            for x, y in loader:
                with session.step():
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="epoch_order",
    source="seed article on mistakes in distributed training",
    ranks=2,
    build=build,
    expected=(Expected("duplicated-data", "epoch order", says=("set_epoch", "4 batches an epoch")),),
    checks=("data",),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
