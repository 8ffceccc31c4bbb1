"""A small training, as it is and with one thing changed, audited into run folders."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import Level

STEPS = 14


def train(folder: str, planted: str = "none", level: Level = "survey") -> None:
    """Train with gradients reduced by hand; `planted`: `none`, `all_gather` or `bfloat16`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 64)
    parts = [torch.empty(32, 64) for _ in range(dist.get_world_size())]
    with audit(model, folder, level=level) as session:
        for _ in range(STEPS):
            with session.step():
                out = model(batch)
                if planted == "all_gather":
                    dist.all_gather(parts, out.detach())
                out.square().mean().backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    sent = parameter.grad.to(torch.bfloat16) if planted == "bfloat16" else parameter.grad
                    dist.all_reduce(sent)
                    parameter.grad.copy_(sent)
                optimizer.step()
                optimizer.zero_grad()
