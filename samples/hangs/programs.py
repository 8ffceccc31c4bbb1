"""The programs: what every rank does in a step, and what one rank does otherwise in step 3.

All run on three ranks or more. A line that a comment names as the one at fault is what the verdict names.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist

ODD_STEP: Final = 3
ODD_RANK: Final = 1
SLOW_S: Final = 0.3
Step = Callable[[int], None]


def _odd(step: int) -> bool:
    """Whether this is the rank and the step that differ."""
    return step == ODD_STEP and dist.get_rank() == ODD_RANK


def skipped() -> Step:
    """A branch on the data: a rank whose batch is empty leaves the second collective out."""

    def step(number: int) -> None:
        loss = torch.ones(4)
        dist.all_reduce(loss)
        tokens = 0 if _odd(number) else 8
        if tokens:
            dist.broadcast(torch.ones(4), 0)

    return step


def sizes() -> Step:
    """A last batch that is shorter on one rank."""

    def step(number: int) -> None:
        rows = 4 if _odd(number) else 8
        dist.all_reduce(torch.ones(rows))

    return step


def swapped() -> Step:
    """Two groups whose collectives one rank issues the other way round."""
    first, second = (dist.new_group() for _ in range(2))

    def step(number: int) -> None:
        groups = [second, first] if _odd(number) else [first, second]
        for group in groups:
            dist.all_reduce(torch.ones(4), group=group)

    return step


def subgroup() -> Step:
    """A barrier that one rank of a sub-group does not call."""
    pair = dist.new_group([0, 1])

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() in (0, 1) and not _odd(number):
            dist.barrier(group=pair)

    return step


def exception() -> Step:
    """An exception on one rank, which then waits for nobody."""

    def step(number: int) -> None:
        if _odd(number):
            raise ValueError("a batch without labels")
        dist.all_reduce(torch.ones(4))

    return step


def dead() -> Step:
    """A rank that the system kills, as one that took too much memory."""

    def step(number: int) -> None:
        if _odd(number):
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))

    return step


def slow() -> Step:
    """A rank that is late in every step, and no hang."""

    def step(_: int) -> None:
        if dist.get_rank() == ODD_RANK:
            time.sleep(SLOW_S)
        dist.all_reduce(torch.ones(4))

    return step


def unmatched() -> Step:
    """A send that nobody receives, too large for the transport to take it over."""

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(4))
        if _odd(number):
            dist.send(torch.ones(8_000_000), 0)
        dist.all_reduce(torch.ones(2))

    return step


PROGRAMS: Final[dict[str, Callable[[], Step]]] = {
    "skipped": skipped,
    "sizes": sizes,
    "swapped": swapped,
    "subgroup": subgroup,
    "exception": exception,
    "dead": dead,
    "slow": slow,
    "unmatched": unmatched,
}
