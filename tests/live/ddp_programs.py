"""DistributedDataParallel as it is: what it sends for itself, and what it sends for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Report
from shardtoll.profiler import audit
from shardtoll.profiler.live.session.schedule import Level
from tests.live.told_kinds import report_of

WIDTH: Final = 64
STEPS: Final = 5
REPEATED: Final = 2
"""Models wrapped one after the other in one audit."""


def layers(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), *more)


def batch(step: int) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def trained(
    model: nn.Module,
    level: Level = "survey",
    *,
    before: Callable[[int], object] | None = None,
    steps: int = STEPS,
) -> Report | None:
    """Audit a plain training loop; only host-sync findings are reported."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with audit(model, level=level) as session:
        for number in range(steps):
            with session.step():
                if before is not None:
                    before(number)
                model(batch(number)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return report_of(session, "host-sync")


def as_json(report: Report | None) -> str | None:
    return None if report is None else report.to_json()


def rows_of(report: Report | None) -> list[Any] | None:
    """Return [step, op, message bytes, cause, phase] of rank 0's collectives."""
    if report is None:
        return None
    frame = report.collectives
    frame = frame[frame["rank"] == 0].astype(object).where(frame.notna(), None)
    named = frame[["step", "op", "message_bytes", "caused_by_op", "phase"]]
    return [[None if value is None else value for value in row] for row in named.values.tolist()]


def wrapped_late(level: Level) -> list[Any] | None:
    """Wrap a model, train and validate it, and wrap another one, all inside one audit."""
    with audit(level=level) as session:
        for _ in range(REPEATED):
            model = DistributedDataParallel(layers())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for number in range(STEPS):
                with session.step():
                    model(batch(number)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            model(batch(STEPS))
    return rows_of(report_of(session))


class WithReads(nn.Module):
    """Reads values in its own backward: a hook of the user's, and a product with a zero in it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        out.register_hook(lambda gradient: None if gradient.sum().item() > -1e9 else gradient)
        return out


def searching(level: Level, reads: bool) -> str | None:
    """Train with find_unused_parameters=True; with `reads` the model reads a value in backward too."""
    net: nn.Module = layers()
    model = DistributedDataParallel(WithReads(net) if reads else net, find_unused_parameters=True)
    return as_json(trained(model, level))
