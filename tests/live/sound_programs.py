"""Programs that are right and look wrong, because ranks hold other gradients on purpose; with broken twins.

Each returns its findings of gradients and replicas, and of micro-batches, on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

KINDS = ("wrong-gradient", "replica-drift", "unsynced-parameter", "sync-every-microbatch")
DIM = 16
STEPS = 5
ALL = ("gradients", "replicas")

Step = Callable[[int], None]
Found = list[dict[str, Any]]


def audited(model: nn.Module, step: Step, checks: tuple[str, ...] = ALL) -> Found:
    with audit(model, checks=checks) as session:
        for number in range(STEPS):
            with session.step():
                step(number)
    report = report_of(session, *KINDS)
    if report is None:
        return []
    return [
        {
            "kind": one.kind,
            "title": one.title,
            "severity": one.severity,
            "confidence": one.confidence,
            "parameter": one.where.parameter,
        }
        for one in report.findings
        if one.kind in KINDS
    ]


def batch(number: int, rank: int | None = None) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(8, DIM, generator=torch.Generator().manual_seed(100 * number + rank))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, DIM))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def local_sgd(left_out: str = "", how: str = "averaged") -> Found:
    """Ranks step on gradients of their own; every second step the parameters are averaged, as one tensor.

    Or added up and not divided, or copied from rank 0 while a count is added up.
    """
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    chosen = [parameter for name, parameter in model.named_parameters() if name != left_out]

    @torch.no_grad()
    def average() -> None:
        whole = torch.cat([parameter.flatten() for parameter in chosen])
        if how == "copied":
            dist.broadcast(whole, 0)
            dist.all_reduce(torch.ones(whole.numel(), dtype=torch.int64))
        else:
            dist.all_reduce(whole)
        parts = (whole / (dist.get_world_size() if how == "averaged" else 1)).split(
            [parameter.numel() for parameter in chosen]
        )
        for parameter, part in zip(chosen, parts, strict=True):
            parameter.copy_(part.view_as(parameter))

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 2:
            average()

    return audited(model, step)


def local_by_name() -> Found:
    """The same, parameter by parameter; how they move is not looked at."""
    model = net()
    optimizer = sgd(model)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters() if number % 2 else ():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()

    return audited(model, step, ("gradients",))


def post_local(averages: bool = True) -> Found:
    """DDP's own hook: after two steps a rank reduces its gradients with itself alone."""
    # Warns of torch's own use of torch.jit where it is imported.
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    model = DistributedDataParallel(net())
    state = local_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=2)
    model.register_comm_hook(state, local_hook.post_localSGD_hook)
    optimizer: Any = sgd(model)
    if averages:
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=2, warmup_steps=2))

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step)


def owners(left_out: str = "") -> Found:
    """ZeRO-1: each parameter has an owner, who gets its gradient, updates it and sends it to the others."""
    model = net()
    size = dist.get_world_size()
    named = [(name, one, at % size) for at, (name, one) in enumerate(model.named_parameters())]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        (model(batch(number)).square().mean() / size).backward()
        for name, parameter, owner in named:
            if name != left_out:
                dist.reduce(parameter.grad, owner)
        optimizer.step()
        optimizer.zero_grad()
        for _, parameter, owner in named:
            dist.broadcast(parameter.data, owner)

    return audited(model, step)


class Sum(torch.autograd.Function):
    """Adds up over all ranks; the loss is one for all of them, so backward has nothing to add."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Experts(nn.Module):
    """A router, and on each rank an expert, all of one seed: ranks have all tokens and add up the outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(DIM, dist.get_world_size(), bias=False)
        self.expert = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def chosen(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = torch.softmax(self.router(x), -1).max(-1)
        rows = (chosen == dist.get_rank()).nonzero().flatten()
        return torch.zeros_like(x).index_add(0, rows, self.expert(x[rows]) * weight[rows, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Sum.apply(self.chosen(x))  # type: ignore[no-untyped-call]
        return out


class Split(Experts):
    """No expert at all: each rank takes its part of the batch."""

    def chosen(self, x: torch.Tensor) -> torch.Tensor:
        size = len(x) // dist.get_world_size()
        at = dist.get_rank() * size
        out = torch.zeros_like(x)
        out[at : at + size] = self.expert(x[at : at + size]) * self.router(x).mean()
        return out


def experts(kind: type[Experts], router: bool = True) -> Found:
    torch.manual_seed(0)
    own = kind()
    model = nn.Sequential(nn.Linear(DIM, DIM), own, nn.Linear(DIM, DIM))
    optimizer = sgd(model)
    shared = [*model[0].parameters(), *(own.router.parameters() if router else ())]

    def step(number: int) -> None:
        model(batch(number, 0)).square().mean().backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step)


def sharpness(clear: str) -> Found:
    """A gradient to climb by, and one from there to step by; each has to be whole. Or two micro-batches."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        if clear == "one":
            model.module[0].bias.grad = None
        elif clear:
            optimizer.zero_grad(set_to_none=clear == "none")
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step, ())


def skipped() -> Found:
    """Some steps are skipped, as a gradient scaler does where a gradient overflowed."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(number: int) -> None:
        loss = model(batch(number)).square().mean() * (float("inf") if number in (0, 2) else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return audited(model, step, ())


def all_cases() -> dict[str, Found]:
    return {
        "local": local_sgd(),
        "local, left out": local_sgd("2.weight"),
        "local, not divided": local_sgd(how="added up"),
        "local, copied": local_sgd(how="copied"),
        "local by name": local_by_name(),
        "post-local": post_local(),
        "post-local, never averaged": post_local(averages=False),
        "owners": owners(),
        "owners, left out": owners("2.weight"),
        "experts": experts(Experts),
        "experts, router left out": experts(Experts, router=False),
        "split": experts(Split),
        "cleared to none": sharpness("none"),
        "cleared to zero": sharpness("zero"),
        "one cleared": sharpness("one"),
        "micro-batches": sharpness(""),
        "skipped": skipped(),
    }
