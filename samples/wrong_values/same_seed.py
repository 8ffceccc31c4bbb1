"""Tensor parallelism whose ranks draw their parts of the weights with one seed.

The model is made on the meta device, parallelized, moved with `to_empty` and reset. On a CPU mesh each rank
then fills its own part, so all ranks hold equal parts: 4 ranks, and a layer a quarter as wide as it looks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardtoll.samples.strategies import common

WIDTH = 64


class Net(nn.Module):
    """Two layers; the first is cut by its rows, the second by its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the second layer of what the first one lets through."""
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


def reset(options: common.Options, device: torch.device) -> common.Job:
    """Return the model whose parts are equal."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    with torch.device("meta"):
        model = Net()
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.to_empty(device=device)
    torch.manual_seed(options.seed)
    model.up.reset_parameters()
    model.down.reset_parameters()
    return _trained(options, device, model)


def whole(options: common.Options, device: torch.device) -> common.Job:
    """Return the model whose weights were made as a whole, and then cut."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(options.seed)
    model = Net().to(device)
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return _trained(options, device, model)


def _trained(options: common.Options, device: torch.device, model: nn.Module) -> common.Job:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        numbers = torch.Generator().manual_seed(number)
        loss: torch.Tensor = (
            model(torch.randn(options.sequences, WIDTH, generator=numbers).to(device)).square().mean()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return common.Job(model, step)


VARIANTS: dict[str, common.Build] = {"reset": reset, "whole": whole}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
