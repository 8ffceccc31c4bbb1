"""Models that torch.compile compiles while an audit is open, from the first step on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit

STEPS = 4


class Net(nn.Module):
    """Of no class of torch's: those are no roots of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


def _losses(audited: bool) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    inner = Net()
    model = torch.compile(DistributedDataParallel(inner), backend="aot_eager")
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    losses = []

    def step() -> None:
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    rows: list[Any] = []
    if audited:
        with audit(inner, level="survey") as session:
            for _ in range(STEPS):
                with session.step():
                    step()
        if session.ledger is not None:
            rows = session.ledger.tables["collectives"].select(["op", "step", "rank"]).to_pylist()
    else:
        for _ in range(STEPS):
            step()
    return {"losses": losses, "graphs": counters["stats"]["unique_graphs"], "rows": rows}


def ddp_compiled_from_the_first_step() -> dict[str, Any]:
    """What a bare run and an audited one see of the same steps."""
    return {"bare": _losses(audited=False), "audited": _losses(audited=True)}
