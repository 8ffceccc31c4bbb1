"""Training whose forward and backward run inside the optimizer's closure, under DDP."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import audit

D = 64
STEPS = 4
CALLS = 3


def train(kind: str, level: Any, checks: tuple[str, ...] = ()) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(D, D) for _ in range(2)]))
    optimizer: Any = (
        torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=CALLS, max_eval=CALLS)
        if kind == "lbfgs"
        else torch.optim.Adam(model.parameters())
    )
    torch.manual_seed(dist.get_rank())
    x = torch.randn(16, D)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    with audit(model, level=level, checks=checks) as session:
        for _ in range(STEPS):
            with session.step():
                optimizer.step(closure)
    report = session.report()
    if report is None:
        return {}
    rows = report.collectives
    reduced = rows[(rows["rank"] == 0) & (rows["op"] == "all_reduce")]
    values = report.tables["values"].to_pylist()
    return {
        "calls": calls,
        "phases": dict(Counter(reduced["phase"])),
        "findings": [(finding.kind, finding.severity) for finding in report.findings],
        "gradients": sorted(
            {row["name"] for row in values if row["kind"] == "gradient" and row["step"] == 0}
        ),
    }


def all_closures() -> dict[str, Any]:
    return {
        "adam": train("adam", "survey"),
        "adam watched": train("adam", "schedule"),
        "lbfgs": train("lbfgs", "survey"),
        "checked": train("adam", "survey", ("gradients",)),
    }
