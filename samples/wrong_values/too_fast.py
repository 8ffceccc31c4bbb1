"""A regression whose learning rate is too high: each step overshoots, until gradients are infinite or NaN.

Nothing stops. The reductions carry NaN to all ranks, and the loss of the last steps is `nan`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.samples.strategies import common

WIDTH = 64
LEARNING_RATE = 1e15


def regression(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP of one layer; with this learning rate its third step has no finite gradient."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step(number: int) -> torch.Tensor:
        numbers = torch.Generator().manual_seed(100 * number + dist.get_rank())
        x = torch.randn(options.sequences, WIDTH, generator=numbers).to(device)
        loss: torch.Tensor = (model(x) - x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return common.Job(model, step)


VARIANTS: dict[str, common.Build] = {"regression": regression}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
