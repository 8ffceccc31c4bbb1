"""Training steps of planted lengths, each as it is and really changed: what `replay_live.py` compares.

Compute is an operator that sleeps, so that ranks do not take each other's cores. `CASES` says which change of
`shardtoll whatif` stands between the two programs of a case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], None]
Build = Callable[[bool], tuple[nn.Module | None, Step]]
"""Given whether the change is made: the model and one step."""

SCALE: Final = 5.0
"""Planted lengths are so many times what programs say: the more, the less a busy machine matters."""
SMALL: Final = 1_000
WIDE: Final = 600


@torch.library.custom_op("planted::work", mutates_args=())
def sleeping(x: torch.Tensor, ms: float) -> torch.Tensor:
    """Compute for so long, on nobody's core."""
    time.sleep(ms / 1e3)
    return x.clone()


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_ms: float, backward_ms: float) -> torch.Tensor:
        ctx.backward_ms = backward_ms
        worked: torch.Tensor = sleeping(x, forward_ms)
        # A second forward stops as soon as it has all that backward needs: it needs this.
        ctx.save_for_backward(worked)
        return worked

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return sleeping(gradient, ctx.backward_ms), None, None


def work(x: torch.Tensor, forward_ms: float, backward_ms: float) -> torch.Tensor:
    """Take so many times `SCALE` ms in the forward, and in the backward."""
    worked: torch.Tensor = _Work.apply(x, SCALE * forward_ms, SCALE * backward_ms)  # type: ignore[no-untyped-call]
    return worked


class Layer(nn.Module):
    """A matrix, and work of known length."""

    def __init__(self, forward_ms: float, backward_ms: float, width: int = 32) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.times = forward_ms, backward_ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, after its time."""
        worked: torch.Tensor = work(self.linear(x), *self.times)
        return worked


class Slow(Dataset[torch.Tensor]):
    """A sample takes so long."""

    def __init__(self, each_ms: float) -> None:
        self._each_ms = each_ms

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SCALE * self._each_ms / 1e3)
        return torch.full((32,), float(index))


def _skewed(changed: bool, *, ends: int = 1) -> tuple[None, Step]:
    """Ranks wait for each other at a gather that no one needs, then at an all_reduce that all need."""
    rank, world = dist.get_rank(), dist.get_world_size()
    first, then = (30.0, 10.0) if rank % 2 == 0 else (10.0, 30.0)
    x, parts = torch.ones(SMALL), torch.empty(SMALL * world)

    def step() -> None:
        y = work(x, first, 0.0)
        if not changed:
            dist.all_gather_into_tensor(parts, y)
        y = work(y, then, 0.0)
        for _ in range(ends):
            dist.all_reduce(y)

    return None, step


def _overlapped(changed: bool) -> tuple[None, Step]:
    """An all_reduce of 32 MB whose result the end of the step needs is waited for at once, or there."""
    x, gradient = torch.ones(SMALL), torch.ones(8_000_000)

    def step() -> None:
        work(x, 20.0, 0.0)
        asked = dist.all_reduce(gradient, async_op=True)
        if not changed:
            asked.wait()
        work(x, 20.0, 0.0)
        if changed:
            asked.wait()
        dist.all_reduce(torch.ones(1))

    return None, step


def _broadcast(changed: bool) -> tuple[None, Step]:
    """32 MB that all ranks have are broadcast."""
    whole = torch.ones(8_000_000)

    def step() -> None:
        work(whole[:SMALL], 20.0, 0.0)
        if not changed:
            dist.broadcast(whole, 0)
        work(whole[:SMALL], 10.0, 0.0)
        dist.all_reduce(torch.ones(1))

    return None, step


def _late(changed: bool, *, late: int = 1, more_ms: float = 30.0) -> tuple[nn.Module, Step]:
    """DDP; one rank's second layer takes longer in the backward."""
    more = 0.0 if changed or dist.get_rank() != late else more_ms
    layers = [Layer(8.0, 12.0 + (more if number == 1 else 0.0)) for number in range(4)]
    return _ddp(layers, torch.ones(4, 32))


def _late_to_buffers(changed: bool) -> tuple[nn.Module, Step]:
    """DDP with running statistics, which its root broadcasts before each forward. The last rank sleeps before
    it comes to that, so that the root waits for who receives."""
    late = not changed and dist.get_rank() == dist.get_world_size() - 1
    layers = [Layer(8.0, 12.0), nn.BatchNorm1d(32), Layer(8.0, 12.0)]
    model, step = _ddp(layers, torch.ones(4, 32))

    def later() -> None:
        time.sleep(SCALE * 10.0 / 1e3 if late else 0.0)
        step()

    return model, later


def _ddp(
    layers: Sequence[nn.Module], batch: torch.Tensor, bucket_mb: float = 25.0, next_batch: Any = None
) -> tuple[nn.Module, Step]:
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        x = batch if next_batch is None else next_batch()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    # DDP lays its buckets out anew in its second step.
    for _ in range(2):
        step()
    return model, step


def _data(changed: bool, *, only: int | None = None) -> tuple[nn.Module, Step]:
    """The step fetches its batch, which takes 30 ms, on all ranks or on one."""
    slow = not changed and only in (None, dist.get_rank())
    batches = iter(DataLoader(Slow(30.0 if slow else 0.0)))
    return _ddp([Layer(8.0, 12.0) for _ in range(3)], torch.ones(1), next_batch=lambda: next(batches))


def _buckets(changed: bool, *, before_mb: float, after_mb: float) -> tuple[nn.Module, Step]:
    """DDP with 8 layers of 1.4 MB; buckets of one size or another."""
    layers = [Layer(2.0, 8.0, WIDE) for _ in range(8)]
    return _ddp(layers, torch.ones(2, WIDE), after_mb if changed else before_mb)


def _recompute(changed: bool) -> tuple[nn.Module, Step]:
    """Three of four layers run their forward again in the backward."""
    layers = nn.ModuleList([Layer(12.0, 12.0) for _ in range(4)])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, layer in enumerate(self.layers):
                again = not changed and number < 3
                x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            return x

    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        model(torch.ones(4, 32, requires_grad=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    return model, step


def _faster(changed: bool) -> tuple[nn.Module, Step]:
    """Compute twice as fast."""
    times = 0.5 if changed else 1.0
    return _ddp([Layer(12.0 * times, 20.0 * times) for _ in range(4)], torch.ones(4, 32))


def _pipeline(changed: bool) -> tuple[nn.Module, Step]:
    """GPipe over all ranks: 4 micro-batches, or 8 of half the length."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    count = 8 if changed else 4
    module = Layer(40.0 / count, 80.0 / count)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, count, loss_fn=lambda y, target: (y - target).square().mean())
    x, target = torch.ones(8, 32), torch.zeros(8, 32)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
        module.zero_grad()

    step()
    return module, step


def _late_and_data(changed: bool) -> tuple[nn.Module, Step]:
    """One rank is late in the backward, and every rank waits for its batch."""
    more = 0.0 if changed or dist.get_rank() != 1 else 30.0
    batches = iter(DataLoader(Slow(0.0 if changed else 20.0)))
    layers = [Layer(8.0, 12.0 + (more if number == 1 else 0.0)) for number in range(3)]
    return _ddp(layers, torch.ones(1), next_batch=lambda: next(batches))


@dataclass(frozen=True, slots=True)
class Case:
    """One change, and the programs before and after it."""

    ranks: int
    build: Build
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Options of `Report.whatif`."""
    kind: str | None = None
    """The finding of this kind that costs most is fixed in their place."""
    op: str | None = None
    """Of that finding."""


CASES: Final[Mapping[str, Case]] = {
    "collective removed": Case(2, _skewed, {"without": ("all_gather",)}),
    "collective removed, 4 ranks": Case(4, _skewed, {"without": ("all_gather",)}),
    "transfer removed": Case(2, _broadcast, {"without": ("broadcast",)}),
    "overlapped": Case(2, _overlapped, kind="exposed-communication"),
    "late rank, 2 ranks": Case(2, _late, {"ranks": (1,)}),
    "late rank, 4 ranks": Case(4, lambda changed: _late(changed, late=2), {"ranks": (2,)}),
    "late rank, its finding": Case(4, lambda changed: _late(changed, late=2), kind="straggler"),
    "late before a broadcast, 2 ranks": Case(2, _late_to_buffers, {"ranks": (1,)}),
    "late before a broadcast, 4 ranks": Case(4, _late_to_buffers, {"ranks": (3,)}),
    "late before a broadcast, its finding": Case(2, _late_to_buffers, kind="straggler"),
    "batch ready": Case(2, _data, {"batch_ready": True}),
    "batch ready, slow on one": Case(2, lambda changed: _data(changed, only=1), {"batch_ready": True}),
    "data stall, its finding": Case(2, _data, kind="data-stall"),
    "buckets joined": Case(
        2, lambda changed: _buckets(changed, before_mb=1.0, after_mb=4.5), {"bucket_bytes": 4_500_000}
    ),
    "buckets cut": Case(
        2, lambda changed: _buckets(changed, before_mb=25.0, after_mb=3.0), {"bucket_bytes": 3_000_000}
    ),
    "micro-batches": Case(4, _pipeline, {"micro_batches": 8}),
    "no recompute": Case(2, _recompute, {"no_recompute": True}),
    "recompute, its finding": Case(2, _recompute, kind="recompute"),
    "compute twice as fast": Case(2, _faster, {"gpu": 2.0}),
    "late rank and batch": Case(2, _late_and_data, {"ranks": (1,), "batch_ready": True}),
}
"""Copies behind compute are none of them: on a CPU no copy is on record apart from compute."""
