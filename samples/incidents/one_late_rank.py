"""One rank is late in backward, and all others pay for it inside of their collectives.

A four-layer model trains under DDP. In the backward of `blocks.1` rank 1 does something that takes it 400 ms
longer than the others: here it sleeps, in real jobs it is a slow disk, a debug hook, a host that swaps, a
device that runs hot. What shows is an all_reduce of 400 ms on every other rank, and people look for the fault
in the network (pytorch#71303: a rank that is behind looks like a collective that hangs).

The bill has to name the rank, the phase and the module it was late in, and to count the others' time as
waiting: the bytes themselves move as fast as ever.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.one_late_rank
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

LATE_S: Final = 0.4
LATE: Final = 1
"""The rank that is late."""
WIDTH: Final = 128
STEPS: Final = 3


class _Late(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(LATE_S)
        return gradients[0]


class Block(nn.Module):
    """A linear layer, and what makes its rank late in backward."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.late = late

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        y: torch.Tensor = self.linear(x).relu()
        return _Late.apply(y) if self.late else y  # type: ignore[no-untyped-call]


def build(fixed: bool) -> Program:
    """Return the program; mended, no rank does anything that others do not."""
    torch.manual_seed(0)
    slow = not fixed and dist.get_rank() == LATE
    blocks = nn.Sequential(*(Block(late=slow and number == 1) for number in range(4)))
    model = DistributedDataParallel(nn.Sequential(OrderedDict(blocks=blocks)))
    # Each rank has data of its own.
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        loss = model(torch.randn(32, WIDTH)).square().mean()
        loss.backward()
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
    name="one_late_rank",
    source="https://github.com/pytorch/pytorch/issues/71303",
    ranks=2,
    build=build,
    expected=(
        Expected(
            "straggler",
            place="blocks.1",
            toll_ns=(round(0.9 * LATE_S * 1e9), round(3 * LATE_S * 1e9)),
            says=("rank 1 is last", "backward"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
