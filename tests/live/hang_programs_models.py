"""Hangs and breakdowns of wrapped models, of data loaders and of exchanges whose sides differ."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardtoll.samples.hangs.programs import ODD_STEP
from tests.live import hang_programs

ODD_RANK: Final = 1
WIDTH: Final = 8
GIVEN_UP_S: Final = 1.5


def run(name: str, folder: str, after_s: float) -> None:
    """Run one of the programs below; where it hangs, end this rank after rank 0 has looked."""
    hang_programs.hang(PROGRAMS[name], folder, after_s=after_s)


def _odd(number: int) -> bool:
    return number == ODD_STEP and dist.get_rank() == ODD_RANK


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, value: torch.Tensor, without: int | None = None) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number != without:
                value = layer(value)  # each layer
        return value


def _sharded() -> _Layers:
    model = _Layers()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def validated_alone() -> Callable[[int], None]:
    """A rank calls the sharded model once more than the others, from another line."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    def step(number: int) -> None:
        model(torch.ones(2, WIDTH)).sum().backward()  # in training
        if _odd(number):
            with torch.no_grad():
                model(torch.ones(2, WIDTH))  # in validation

    return step


def layer_dropped() -> Callable[[int], None]:
    """A rank drops a layer that the others run."""
    model = _sharded()

    def step(number: int) -> None:
        model(torch.ones(2, WIDTH), without=1 if _odd(number) else None).sum().backward()

    return step


def gradients_unsynced() -> Callable[[int], None]:
    """A rank leaves out DDP's all-reduce of one step, and is through all steps before the others."""
    model = nn.parallel.DistributedDataParallel(_Layers())

    def step(number: int) -> None:
        with model.no_sync() if _odd(number) else contextlib.nullcontext():
            model(torch.ones(2, WIDTH)).sum().backward()

    return step


class _Dying(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, dies: bool) -> None:
        self._dies = dies

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._dies and index == ODD_STEP + 1:
            os._exit(3)
        return torch.ones(WIDTH)


def worker_died() -> Callable[[int], None]:
    """A worker of one rank's loader dies while that rank is in a collective: a signal's handler tells it."""
    dies = dist.get_rank() == ODD_RANK
    loader: Any = torch.utils.data.DataLoader(_Dying(dies), batch_size=1, num_workers=1, prefetch_factor=1)
    batches = iter(loader)

    def step(number: int) -> None:
        value = next(batches)
        if number == ODD_STEP and not dies:
            time.sleep(2.0)  # the worker dies meanwhile
        dist.all_reduce(value)  # of the batch

    return step


def pair_of_other_size() -> Callable[[int], None]:
    """A send of more than its receive has room for."""

    def step(number: int) -> None:
        many = 4_000_000 if number == ODD_STEP else 4
        if dist.get_rank() == 0:
            dist.send(torch.ones(2 * many if number == ODD_STEP else many), 1)  # too much
        if dist.get_rank() == 1:
            dist.recv(torch.ones(many), 0)  # too little
        dist.all_reduce(torch.ones(4))

    return step


def given_up() -> Callable[[int], None]:
    """A rank that comes to a collective after torch's own limit has ended it on the others."""
    group = dist.new_group(timeout=timedelta(seconds=GIVEN_UP_S))

    def step(number: int) -> None:
        if _odd(number):
            time.sleep(2 * GIVEN_UP_S)
        dist.all_reduce(torch.ones(4), group=group)  # with a limit

    return step


PROGRAMS: Final[dict[str, Callable[[], Callable[[int], None]]]] = {
    "validated_alone": validated_alone,
    "layer_dropped": layer_dropped,
    "gradients_unsynced": gradients_unsynced,
    "worker_died": worker_died,
    "pair_of_other_size": pair_of_other_size,
    "given_up": given_up,
}
