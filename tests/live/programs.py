"""Small training programs with closed-form communication, run by live tests on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

D = 32
HIDDEN = 64
BATCH = 8


class MLP(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(D, HIDDEN, bias=bias)
        self.down = nn.Linear(HIDDEN, D, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def blocks(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*[MLP() for _ in range(count)])


def train_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> float:
    loss = model(x).square().mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def make(kind: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model parallelised as `kind` says, and what makes its input."""
    world = dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = blocks()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for block in model:  # type: ignore[attr-defined]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        for block in model:  # type: ignore[attr-defined]
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        assert kind == "plain"
    seed = 0 if kind == "tp" else dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return model, lambda: torch.randn(BATCH, D, generator=generator)


def collectives_of(kind: str, steps: int = 2) -> dict[str, Any]:
    """Train under an audit; return rank 0's rows of every rank, and this rank's loss."""
    from shardtoll.profiler import audit

    model, batch = make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [train_step(model, batch(), optimizer)]
    with audit(model) as session:
        for _ in range(steps):
            with session.step():
                losses.append(train_step(model, batch(), optimizer))
    ledger = session.ledger
    rows = {name: table.to_pylist() for name, table in ledger.tables.items()} if ledger else None
    return {"losses": losses, "rows": rows, "mesh": dict(ledger.run.mesh) if ledger else None}
