"""Collectives written by hand, on the whole job, on groups of some of its ranks, and of objects.

`all_kinds` calls each collective once. `pairs` works in groups of two that were made beforehand, and in one
made in the middle of a step, used and destroyed. `objects` shows what a friendly call costs: objects
travel as bytes, and their sizes must travel first, so each call is two collectives, or three.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.groups --variant objects
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.samples.strategies import common

ELEMENTS: Final = 8
"""Of each rank's tensor; 32 bytes."""
OBJECT: Final = {"loss": 0.5, "tokens": 7}


def _job(device: torch.device, run: Callable[[], object]) -> common.Job:
    def step(_: int) -> torch.Tensor:
        run()
        return torch.zeros((), device=device)

    return common.Job(nn.Identity(), step)


def all_kinds(_: common.Options, device: torch.device) -> common.Job:
    """Return a job that calls every collective once, the first rank being the root."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own = torch.full((ELEMENTS,), float(rank), device=device)
    # As many elements as ranks, or all_to_all could not share them out.
    each = torch.full((ELEMENTS * world,), float(rank), device=device)

    def run() -> None:
        parts = [torch.empty_like(own) for _ in range(world)]
        dist.all_reduce(own.clone(), op=dist.ReduceOp.MAX)
        dist.all_gather(parts, own)
        dist.reduce_scatter(torch.empty_like(own), list(each.chunk(world)))
        dist.broadcast(own.clone(), src=0)
        dist.reduce(own.clone(), dst=0)
        dist.gather(own, parts if rank == 0 else None, dst=0)
        dist.scatter(torch.empty_like(own), parts if rank == 0 else None, src=0)
        dist.all_to_all_single(torch.empty_like(each), each)
        dist.barrier()
        work = dist.all_reduce(own.clone(), async_op=True)
        assert work is not None
        work.wait()
        if device.type == "cpu":
            dist.monitored_barrier()

    return _job(device, run)


def pairs(_: common.Options, device: torch.device) -> common.Job:
    """Return a job that reduces within pairs, among the even ranks, and in a group made for the moment."""
    rank, world = dist.get_rank(), dist.get_world_size()
    # Every rank takes part in making every group, its own or not.
    made = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    even = dist.new_group(list(range(0, world, 2)), group_desc="even")

    def run() -> None:
        dist.all_reduce(torch.ones(ELEMENTS, device=device), group=made[rank // 2])
        if rank % 2 == 0:
            dist.broadcast(torch.ones(2 * ELEMENTS, device=device), src=0, group=even)
        passing = dist.new_group(list(range(world - 1)), group_desc="passing")
        if rank < world - 1:
            dist.all_reduce(torch.ones(3 * ELEMENTS, device=device), group=passing)
            dist.destroy_process_group(passing)
        dist.all_reduce(torch.ones(4 * ELEMENTS, device=device))

    return _job(device, run)


def objects(_: common.Options, device: torch.device) -> common.Job:
    """Return a job that sends the same small object around in every way there is."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def run() -> None:
        found: list[Any] = [None] * world
        dist.all_gather_object(found, OBJECT)
        dist.gather_object(OBJECT, found if rank == 0 else None, dst=0)
        dist.broadcast_object_list([OBJECT if rank == 0 else None], src=0)
        dist.scatter_object_list([None], [OBJECT] * world if rank == 0 else None, src=0)
        if rank == 0:
            dist.send_object_list([OBJECT], dst=1)
        elif rank == 1:
            dist.recv_object_list([None], src=0)

    return _job(device, run)


VARIANTS: Final[dict[str, common.Build]] = {"all_kinds": all_kinds, "pairs": pairs, "objects": objects}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
