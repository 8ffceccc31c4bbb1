"""A layer that was added after the model was wrapped.

DistributedDataParallel makes its list of parameters when it wraps the model. Whoever adds an adapter, a new
head or a lazily built layer afterwards trains it on each rank by that rank's own batch: no reduction takes
part of it, nothing complains, and each rank ends with a layer of its own.

Source: a seed article of this project, on mistakes in distributed training; PyTorch's notes on DDP say that
parameters must not be added after construction.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.late_param
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, Proven, main

BATCH: Final = 16
DIM: Final = 32
STEPS: Final = 3


class Model(nn.Module):
    """A body, and an adapter that is given to it later."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(DIM, DIM)
        self.adapter: nn.Module = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, dim] for the same."""
        out: torch.Tensor = self.adapter(self.body(x).relu())
        return out


def build(fixed: bool) -> Program:
    """Return the program; `fixed` adds the adapter before wrapping."""
    torch.manual_seed(0)
    module = Model()
    if fixed:
        module.adapter = nn.Linear(DIM, DIM)
    model = DistributedDataParallel(module)
    if not fixed:
        module.adapter = nn.Linear(DIM, DIM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(session: Session) -> None:
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(STEPS):
            with session.step():
                x = torch.randn(BATCH, DIM, generator=generator)
                loss = (model(x) - x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="late_param",
    source="seed article on mistakes in distributed training",
    ranks=2,
    build=build,
    expected=(
        Expected("unsynced-parameter", "adapter.weight", says=("DDP", "added after wrapping")),
        Expected("unsynced-parameter", "adapter.bias"),
    ),
    proven=(
        Proven("wrong-gradient", "adapter", "its gradient is each rank's own: no reduction takes part of it"),
        Proven("replica-drift", "adapter", "each rank trains an adapter of its own from the first step on"),
    ),
    checks=("gradients", "replicas"),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
