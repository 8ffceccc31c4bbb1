"""Two ranks that train on the same batches.

DistributedDataParallel spreads gradients, not data. With a plain DataLoader and one seed for all ranks,
every rank reads the same batch in every step: twice the machines, the same training, at the same speed, and
a learning rate that was scaled for a batch that is not there. The loss looks as it should.

Source: a seed article of this project, on mistakes in distributed training.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.ddp_no_sampler
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, Proven, main

SAMPLES: Final = 128
BATCH: Final = 16
DIM: Final = 32
CLASSES: Final = 8
STEPS: Final = 4


def build(fixed: bool) -> Program:
    """Return the program; `fixed` gives each rank its own part of the data."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, DIM), torch.randint(CLASSES, (SAMPLES,)))
    if fixed:
        sampler: DistributedSampler[int] = DistributedSampler(data)
        loader = DataLoader(data, BATCH, sampler=sampler)
    else:
        loader = DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, CLASSES)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(session: Session) -> None:
        for _, (x, y) in zip(range(STEPS), loader, strict=False):
            with session.step():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="ddp_no_sampler",
    source="seed article on mistakes in distributed training",
    ranks=2,
    build=build,
    expected=(Expected("duplicated-data", "input", says=("ranks 0-1", "DistributedSampler")),),
    proven=(
        Proven("duplicated-compute", "aten.", "equal batches through equal weights: all work is done twice"),
    ),
    checks=("data",),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
