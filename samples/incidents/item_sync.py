"""`.item()` of the loss and of every sample's metric, in every step.

Whoever wants to see how training goes reads values: `loss.item()`, and here also the error of each sample,
one by one, for a histogram. Each read makes Python wait for the value. On an accelerator it waits for all
work that is queued, and the device then has nothing to do until the host has launched something new; on a CPU
nothing is queued, and what is lost is the host's own time: thousands of reads that are one when the tensor is
read as a whole.

The bill has to name the line and what the reads cost. The mended twin keeps the tensors, detached, and reads
them once after the last step.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.item_sync
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

BATCH: Final = 2048
WIDTH: Final = 32
STEPS: Final = 3
LEAST_READ_NS: Final = 200
"""No machine reads a value in Python any faster."""
MOST_READ_NS: Final = 100_000


class Metrics:
    """The losses of the steps and the errors of the samples."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self.losses: list[float] = []
        self.errors: list[float] = []
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, loss: torch.Tensor, errors: torch.Tensor) -> None:
        """Take in a step."""
        if self._keep:
            self._kept.append((loss.detach(), errors.detach()))
            return
        self.losses.append(loss.item())
        self.errors += [error.item() for error in errors]

    def read(self) -> None:
        """Read what was kept."""
        for loss, errors in self._kept:
            self.losses.append(loss.item())
            self.errors += errors.tolist()


def build(fixed: bool) -> Program:
    """Return the program; mended, it reads after the last step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    # Each rank has data of its own.
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metrics = Metrics(keep=fixed)

    def step() -> None:
        errors = model(torch.randn(BATCH, WIDTH)).square().mean(dim=1)
        loss = errors.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics.update(loss, errors)

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                step()
        metrics.read()

    # DDP lays its buckets out anew in its second step.
    step()
    step()
    return Program(model, train)


INCIDENT = Incident(
    name="item_sync",
    source="practice",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "host-sync",
            place="item_sync.py:50",
            toll_ns=(BATCH * LEAST_READ_NS, BATCH * MOST_READ_NS),
            says=(f"{BATCH:,} times per step", ".item()"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
