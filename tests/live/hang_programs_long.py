"""Programs whose steps have more collectives than half a rank's record holds, and what ends a job oddly."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import audit
from tests.live import hang_programs

ODD_STEP = 3
CALLS = 380
"""Of the inner group a step: the record holds 512 of all."""
ABORTED_S = 6.0
Step = Callable[[int], None]


def _odd(number: int) -> bool:
    return number == ODD_STEP and dist.get_rank() == 1


def _two_groups() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    everyone = list(range(dist.get_world_size()))
    return dist.new_group(everyone), dist.new_group(everyone)


def _inner(group: dist.ProcessGroup) -> None:
    for _ in range(CALLS):
        dist.all_reduce(torch.ones(2), group=group)


def one_too_many() -> Step:
    """One rank clips its gradients twice."""
    inner, outer = _two_groups()

    def clip() -> None:
        dist.all_reduce(torch.ones(1), group=outer)  # clip

    def step(number: int) -> None:
        _inner(inner)
        clip()
        if _odd(number):
            clip()
        dist.all_reduce(torch.ones(4), group=inner)

    return step


def early_one_again() -> Step:
    """One rank issues once more what the record has lost of every earlier step."""
    inner, outer = _two_groups()

    def scale() -> None:
        dist.all_reduce(torch.ones(1), group=outer)  # scale

    def step(number: int) -> None:
        scale()
        _inner(inner)
        _inner(inner)
        if _odd(number):
            scale()
        dist.all_reduce(torch.ones(4), group=inner)

    return step


def swapped() -> Step:
    """One rank takes two groups in another order, and issues nothing too often."""
    inner, outer = _two_groups()

    def step(number: int) -> None:
        _inner(inner)
        tensors = [(torch.ones(4), inner), (torch.ones(1), outer)]
        for tensor, group in reversed(tensors) if _odd(number) else tensors:
            dist.all_reduce(tensor, group=group)  # both

    return step


def evaluated_alone() -> Step:
    """Rank 0 calls the wrapped model once more: DDP sends its buffers, which C++ issues."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))

    def step(number: int) -> None:
        model(torch.ones(2, 8)).sum().backward()
        if number == ODD_STEP and dist.get_rank() == 0:
            model(torch.ones(2, 8))
        model(torch.ones(2, 8)).sum().backward()  # again

    return step


def group_of_a_part(limit: timedelta | None = None) -> Step:
    """One rank does not call `new_group`."""

    def step(number: int) -> None:
        if number == ODD_STEP and dist.get_rank() != 1:
            dist.new_group(timeout=limit)  # members only
        dist.all_reduce(torch.ones(2))  # of all

    return step


def aborted() -> Step:
    """Ranks are aborted in a long wait, as torch's watchdog does, and the late rank comes after."""

    def step(number: int) -> None:
        if number == ODD_STEP and dist.get_rank() == 0:
            time.sleep(ABORTED_S + 2.0)
        elif number == ODD_STEP:
            guard = threading.Timer(ABORTED_S, os.abort)
            guard.daemon = True
            guard.start()
        dist.all_reduce(torch.ones(2))  # in time?

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (one_too_many, early_one_again, swapped, evaluated_alone, group_of_a_part, aborted)
}


def run(name: str, folder: str, after_s: float) -> None:
    """Run a program; end this rank after rank 0 has looked."""
    hang_programs.hang(PROGRAMS[name], folder, after_s=after_s)


def run_to_end(name: str, folder: str, after_s: float, limit_s: float) -> None:
    """Run a program until torch's own limit ends it: nothing else does."""
    limit = timedelta(seconds=limit_s)
    if name == "group_of_a_part":
        step = group_of_a_part(limit)
    else:
        step = PROGRAMS[name]()
        dist.distributed_c10d._set_pg_timeout(limit)
    with audit(
        out=Path(folder, "run"), level="schedule", hang_after_s=after_s, gather_limit_s=2.0
    ) as session:
        for number in range(hang_programs.STEPS):
            with session.step():
                step(number)
