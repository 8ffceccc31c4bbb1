"""The habits: each function returns a model and a step of its training loop, with the fault or without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shardtoll.samples.strategies.ddp import FORWARD_BUFFERS

WIDTH: Final = 128
ROWS: Final = 32
FAVOUR: Final = 20.0
"""Added to each token's score of the first expert; scores are about as large."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A model and what one step of training does."""

    model: nn.Module
    step: Callable[[int], object]


Program = Callable[[bool], Loop]
"""Given whether it is to be sound, makes its loop."""


class Block(nn.Module):
    """A layer and a table that never changes."""

    table: torch.Tensor

    def __init__(self, *, table: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.register_buffer("table", torch.arange(WIDTH).float().sin() if table else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layers' output, with the table added if there is one."""
        out: torch.Tensor = self.layers(x if self.table is None else x + self.table)
        return out


def batch(step: int) -> torch.Tensor:
    """Return this rank's batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(ROWS, WIDTH, generator=generator)


def trained(model: nn.Module, *, after: Callable[[], object] = lambda: None) -> Loop:
    """Return a plain training loop; `after` runs at the end of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()

    return Loop(model, step)


def barrier(fixed: bool) -> Loop:
    """All ranks wait for each other at the end of each step, as they did in the reduction before."""
    model = DistributedDataParallel(Block())
    return trained(model) if fixed else trained(model, after=dist.barrier)


def buffers(fixed: bool) -> Loop:
    """A table of constants goes from rank 0 to all at each forward."""
    choices: dict[str, Any] = {FORWARD_BUFFERS: False} if fixed else {}
    return trained(DistributedDataParallel(Block(table=True), **choices))


def unused(fixed: bool) -> Loop:
    """DDP looks for parameters that backward leaves out, and there are none."""
    return trained(DistributedDataParallel(Block(), find_unused_parameters=not fixed))


def hooks(fixed: bool) -> Loop:
    """Hooks of the program's own average each gradient before DDP does it again."""
    model = Block()
    for parameter in model.parameters() if not fixed else ():
        parameter.register_hook(averaged)  # type: ignore[no-untyped-call]
    return trained(DistributedDataParallel(model))


def averaged(gradient: torch.Tensor) -> torch.Tensor:
    """Return the mean of a gradient over the ranks."""
    mean = gradient.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def twice(fixed: bool) -> Loop:
    """A module that FSDP2 is to keep after forward is called twice, so it has two backwards."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[1], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        x, y = batch(2 * number), batch(2 * number + 1)
        first, second = model(torch.cat([x, y])).split([len(x), len(y)]) if fixed else (model(x), model(y))
        (first.square().mean() + second.abs().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Loop(model, step)


def zero(fixed: bool) -> Loop:
    """Nobody clears the gradients: each step adds to all that were used before."""
    model = DistributedDataParallel(Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if fixed:
            optimizer.zero_grad()

    return Loop(model, step)


class Routed(nn.Module):
    """Sends each token to the rank of its expert and back; a table that never learns chooses the expert."""

    likes: torch.Tensor

    def __init__(self, *, even: bool) -> None:
        super().__init__()
        self.even = even
        ranks = dist.get_world_size()
        self.register_buffer("likes", torch.randn(WIDTH, ranks), persistent=False)
        self.expert = Block()

    def chosen(self, x: torch.Tensor) -> torch.Tensor:
        """Return the expert of each token: the one that it likes best, or by turns."""
        if self.even:
            return torch.arange(len(x)) % self.likes.shape[1]
        scores = x @ self.likes
        # Everybody likes the first one.
        scores[:, 0] += FAVOUR
        return scores.argmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return each token as its expert makes it."""
        chosen = self.chosen(x)
        order = chosen.argsort(stable=True)
        outgoing = torch.bincount(chosen, minlength=self.likes.shape[1])
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        sent, got = outgoing.tolist(), incoming.tolist()
        world: Any = dist.group.WORLD
        here = all_to_all_single_autograd(x[order], got, sent, world)
        back = all_to_all_single_autograd(self.expert(here), sent, got, world)
        return torch.empty_like(x).index_copy(0, order, back)


def experts(fixed: bool) -> Loop:
    """Most tokens go to the first rank's expert."""
    return trained(Routed(even=fixed))


CLASSES: Final = 256
"""Divisible by the ranks, so that each has as many."""


def logits(fixed: bool) -> Loop:
    """The classes of the logits are gathered, although loss_parallel makes the loss of parts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(Block(), nn.Linear(WIDTH, CLASSES))
    parts = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"1": parts if fixed else ColwiseParallel(output_layouts=Replicate())})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        # All ranks have one batch, as they have parts of one model.
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(ROWS, WIDTH, generator=generator)
        labels = torch.randint(CLASSES, (ROWS,), generator=generator)
        with loss_parallel() if fixed else contextlib.nullcontext():
            F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return Loop(model, step)


PROGRAMS: Final[dict[str, Program]] = {
    "barrier": barrier,
    "buffers": buffers,
    "unused": unused,
    "hooks": hooks,
    "twice": twice,
    "zero": zero,
    "experts": experts,
    "logits": logits,
}
