"""One process as rank 0 of a big job: fake process group, fake tensors, FSDP2 over tensor parallelism."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardtoll.profiler import audit

DP, TP, BLOCKS, BATCH, WIDTH, HIDDEN = 8, 8, 2, 16, 256, 1024


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) + 0.0


def fake_step() -> dict[str, Any]:
    """Audit the second of two steps; return its rows."""
    dist.init_process_group("fake", rank=0, world_size=DP * TP, store=FakeStore())
    mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    make = type(mesh).__init__

    def with_values(*args: Any, **kwargs: Any) -> None:
        with unset_fake_temporarily():
            make(*args, **kwargs)

    type(mesh).__init__ = with_values  # type: ignore[method-assign]
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(*[MLP() for _ in range(BLOCKS)])
        for block in model:
            parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=dp)
        fully_shard(model, mesh=dp)
        batch = torch.randn(BATCH, WIDTH, requires_grad=True)

        def step() -> None:
            model(batch).square().mean().backward()

        step()
        with audit(model, level="survey") as session, session.step():
            step()
    assert session.ledger is not None
    return {name: table.to_pylist() for name, table in session.ledger.tables.items()}


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump(fake_step(), file)
    # The interpreter's shutdown with a fake mode's caches is no part of the test.
    sys.stdout.flush()
    os._exit(0)
