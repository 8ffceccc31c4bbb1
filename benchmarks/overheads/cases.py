"""The models and steps that overhead.py times, and one program of the collectives they have not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WIDTH: Final = 64
ROWS: Final = 32
BLOCKS: Final = 4


@dataclass(frozen=True, slots=True)
class Program:
    """A model and one training step of it."""

    model: nn.Module
    step: Callable[[], None]


class Block(nn.Module):
    """A transformer's MLP with its residual, and a norm where asked for."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and its MLP's output, added."""
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class Plain(nn.Module):
    """A product and a residual: with x sharded by rows and the weight by columns, DTensor must move one."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(WIDTH, WIDTH) / WIDTH, mesh, [Shard(1)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and its product with the weight, added."""
        return x + torch.relu(x @ self.weight)


def _training(model: nn.Module, x: torch.Tensor) -> Program:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, step)


def _tensor_parallel(mesh: DeviceMesh) -> Program:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return _training(model, torch.randn(ROWS, WIDTH))


def _sequence_parallel(mesh: DeviceMesh) -> Program:
    model = nn.Sequential(*(Block(norm=True) for _ in range(BLOCKS)))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model:
        parallelize_module(block, mesh, cast("dict[str, Any]", plan))
    return _training(model, torch.randn(1, ROWS, WIDTH))


def _fsdp2(mesh: DeviceMesh) -> Program:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _training(model, torch.randn(ROWS, WIDTH))


def _implicit(mesh: DeviceMesh) -> Program:
    model = nn.Sequential(*(Plain(mesh) for _ in range(BLOCKS)))
    return _training(model, distribute_tensor(torch.randn(ROWS, WIDTH), mesh, [Shard(0)]))


def mixed(mesh: DeviceMesh) -> Program:
    """Return DDP with a pair of send and receive, a barrier and a gathered object in each step."""
    size = mesh.size()
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*(Block() for _ in range(BLOCKS))), process_group=mesh.get_group()
    )
    train = _training(model, torch.randn(ROWS, WIDTH)).step

    def step() -> None:
        train()
        rank = dist.get_rank()
        pair = [
            dist.P2POp(dist.isend, torch.ones(8), (rank + 1) % size),
            dist.P2POp(dist.irecv, torch.empty(8), (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        dist.all_gather_object([None] * size, {"rank": rank})
        dist.barrier()

    return Program(model, step)


def _data_parallel(mesh: DeviceMesh) -> Program:
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*(Block() for _ in range(BLOCKS))), process_group=mesh.get_group()
    )
    return _training(model, torch.randn(ROWS, WIDTH))


def _many_collectives(mesh: DeviceMesh) -> Program:
    """Return a step of nothing but collectives, each as small as can be: no tool is cheap beside those."""
    group, small = mesh.get_group(), torch.ones(4)

    def step() -> None:
        for _ in range(100):
            dist.all_reduce(small, group=group)

    return Program(nn.Linear(1, 1), step)


def _many_operators(mesh: DeviceMesh) -> Program:
    """Return a step of many small operators and one collective."""
    group, small = mesh.get_group(), torch.ones(4)

    def step() -> None:
        value = small
        for _ in range(300):
            value = (value + 1) * 0.5
        dist.all_reduce(value, group=group)

    return Program(nn.Linear(1, 1), step)


PROGRAMS: Final[dict[str, tuple[str, Callable[[DeviceMesh], Program]]]] = {
    "tp": ("tp", _tensor_parallel),
    "sp": ("tp", _sequence_parallel),
    "fsdp2": ("dp", _fsdp2),
    "implicit": ("tp", _implicit),
    "ddp": ("dp", _data_parallel),
    "collectives": ("dp", _many_collectives),
    "operators": ("dp", _many_operators),
    "mixed": ("dp", mixed),
}
"""Name -> the name of its mesh dimension, and what builds it."""


def build(kind: str, ranks: int) -> Program:
    """Build a program over all ranks of the default group."""
    dim, make = PROGRAMS[kind]
    return make(init_device_mesh("cpu", (ranks,), mesh_dim_names=(dim,)))
