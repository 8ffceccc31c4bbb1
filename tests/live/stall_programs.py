"""Programs that lose time in known places: loaders, reads of values, ranks that are late."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from shardtoll.profiler import Session, audit
from shardtoll.profiler.live.session.schedule import Level
from shardtoll.samples.incidents.common import run
from tests.live.told_kinds import report_of

SLEEP_S: Final = 0.08
LATE: Final = 1
STEPS: Final = 5
WIDTH: Final = 16


class Slow(Dataset[torch.Tensor]):
    """A sample a step, and a sleep for each where asked."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._sleep_s)
        return torch.full((WIDTH,), float(index))


def on_late(seconds: float = SLEEP_S) -> float:
    return seconds if dist.get_rank() == LATE else 0.0


class Block(nn.Module):
    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._sleep_s = sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self._sleep_s)
        y: torch.Tensor = self.linear(x)
        return y


Step = Callable[[torch.Tensor], None]


def trained(slow_block: int | None = None, *, in_optimizer: bool = False) -> tuple[nn.Module, Step]:
    """Return a model in DDP and its step; a block's forward or the optimizer's may sleep on the late rank."""
    blocks = [Block(on_late() if number == slow_block else 0.0) for number in range(4)]
    model = DistributedDataParallel(nn.Sequential(*blocks))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    if in_optimizer:
        optimizer.register_step_pre_hook(lambda *_: time.sleep(on_late()))

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    # DDP lays its buckets out anew in its second step.
    for _ in range(2):
        step(torch.ones(1, WIDTH))
    return model, step


def _batches(loader: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from loader


def _of_its_own() -> Iterator[torch.Tensor]:
    for _ in range(STEPS):
        time.sleep(on_late())
        yield torch.ones(1, WIDTH)


def _looped(batches: Iterable[torch.Tensor], level: Level) -> str | None:
    model, step = trained()
    with audit(model, level=level) as session:
        for batch in batches:
            with session.step():
                step(batch)
    return _told(session)


def _told(session: Session) -> str | None:
    report = report_of(session, "data-stall", "straggler")
    return None if report is None else report.to_json()


def loader(level: Level) -> str | None:
    """One rank's loader sleeps; its batches go through a generator, as progress bars have it."""
    return _looped(_batches(DataLoader(Slow(on_late()))), level)


def workers() -> str | None:
    """The loader sleeps in a worker process, which fetches while the step runs: here it has nothing to do."""
    return _looped(DataLoader(Slow(0.0), num_workers=1), "survey")


def own_generator() -> str | None:
    """Batches come of a generator that no DataLoader is behind."""
    return _looped(_of_its_own(), "schedule")


def inside(level: Level) -> str | None:
    """The step fetches its own batch."""
    model, step = trained()
    batches = iter(DataLoader(Slow(on_late())))
    with audit(model, level=level) as session:
        for _ in range(STEPS):
            with session.step():
                step(next(batches))
    return _told(session)


def late(where: str) -> str | None:
    """Rank 1 is late in a block's forward or in the optimizer."""
    model, step = trained(2 if where == "forward" else None, in_optimizer=where == "optimizer")
    with audit(model, level="survey") as session:
        for _ in range(STEPS):
            with session.step():
                step(torch.ones(1, WIDTH))
    return _told(session)


def reads() -> list[dict[str, Any]]:
    """Two kinds of reads a step: of what is there, and of a collective's result that a rank is late for.

    Returns the rows of this rank's stalls, and of its steps.
    """
    model, step = trained()
    with audit(model, level="survey") as session:
        for _ in range(STEPS):
            with session.step():
                step(torch.ones(1, WIDTH))
                metric = torch.ones(3).sum()
                assert metric.item() == bool(metric) * float(metric)
                time.sleep(on_late())
                mean = all_reduce(metric, "sum", dist.group.WORLD)
                assert mean.item() == 3 * dist.get_world_size()
    ledger = session.ledger
    if ledger is None:
        return []
    tables = {name: ledger.tables[name].to_pylist() for name in ("stalls", "steps", "collectives")}
    return [{"table": name, **row} for name, rows in tables.items() for row in rows if row["rank"] == 0]


def incident(name: str, fixed: bool) -> str | None:
    """Run an incident; rank 0 returns its report with the kinds of findings that it expects."""
    module = importlib.import_module(f"shardtoll.samples.incidents.{name}")
    kinds = {expected.kind for expected in module.INCIDENT.expected}
    report = report_of(run(module.INCIDENT, fixed, None), *sorted(kinds))
    return None if report is None else report.to_json()
