"""The same training under several wrappers, and incidents with their twins, audited into run folders."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from shardtoll.samples.incidents.common import audited

STEPS = 3
BATCH = 8


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


def train(kind: str, folder: str, scale: float = 1.0) -> None:
    """Train under `ddp`, `fsdp1`, `fsdp` or `fsdp-tp` on the same global batches; `scale`: of the loss."""
    ranks = dist.get_world_size()
    model: nn.Module = _model()
    parts, mine = ranks, dist.get_rank()
    trained: nn.Module = model
    if kind == "ddp":
        trained = DistributedDataParallel(model)
    elif kind == "fsdp1":
        trained = model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    elif kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))
    else:
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        parts, mine = ranks // 2, dist.get_rank() // 2
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    with audit(model, folder, level="survey", checks=("gradients",)) as session:
        for _ in range(STEPS):
            batch = torch.randn(BATCH, 16, generator=generator)
            with session.step():
                (scale * trained(batch.chunk(parts)[mine]).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()


def twins(name: str, folder: str) -> dict[str, Any]:
    """Run an incident and its mended twin with gradients on record."""
    incident = import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    looked = replace(incident, checks=tuple({*incident.checks, "gradients"}))
    for fixed in (False, True):
        audited(looked, fixed, Path(folder, "fixed" if fixed else "bad"))
    return {}
