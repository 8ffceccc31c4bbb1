"""More programs that hang, each in another way than the samples do, and strategies that never hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.ledger.disk.flight_memory import FOLDER
from shardtoll.profiler import audit
from tests.live import hang_programs

ODD_STEP = 3
STUCK_S = 50.0
Step = Callable[[int], None]


def _odd(step: int) -> bool:
    return step == ODD_STEP and dist.get_rank() == 1


def _neighbours() -> tuple[int, int]:
    rank, world = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % world, (rank + 1) % world


def swapped_ring() -> Step:
    """A ring of blocking calls, even ranks send first; in one step an odd rank does too."""
    left, right = _neighbours()

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(2))
        sent, got = torch.ones(4_000_000), torch.empty(4_000_000)
        if dist.get_rank() != 1 or _odd(number):
            dist.send(sent, right)
            dist.recv(got, left)
        else:
            dist.recv(got, left)
            dist.send(sent, right)

    return step


def three_groups() -> Step:
    """Each rank of three is in two of three groups, and all begin with the one to their right."""
    groups = [dist.new_group(sorted((rank, (rank + 1) % 3))) for rank in range(3)]
    left, right = (dist.get_rank() - 1) % 3, dist.get_rank()

    def step(number: int) -> None:
        order = (right, left) if number == ODD_STEP or dist.get_rank() != 0 else (left, right)
        if number != ODD_STEP:
            order = tuple(sorted(order))  # type: ignore[assignment]
        for index in order:
            dist.all_reduce(torch.ones(2), group=groups[index])

    return step


def stuck_optimizer() -> Step:
    """One rank does not come out of its optimizer."""

    class Slow(torch.optim.SGD):
        stuck = False

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            if self.stuck:
                time.sleep(STUCK_S)  # in the optimizer
            super().step()

    model = torch.nn.Linear(4, 4)
    optimizer = Slow(model.parameters(), 0.1)

    def step(number: int) -> None:
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.stuck = _odd(number)
        optimizer.step()

    return step


def stuck_loader() -> Step:
    """One rank waits for its data."""

    def read(number: int) -> int:
        if _odd(number):
            time.sleep(STUCK_S)
        return 4

    def step(number: int) -> None:
        rows = read(number)
        dist.all_reduce(torch.ones(rows))

    return step


def objects() -> Step:
    """A gather of objects that one rank leaves out."""

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(2))
        if not _odd(number):
            dist.all_gather_object([None] * dist.get_world_size(), {"step": number})

    return step


def store() -> Step:
    """One rank waits in the job's store for a key that nobody sets."""
    kept = dist.distributed_c10d._get_default_store()

    def step(number: int) -> None:
        if _odd(number):
            kept.get("a key that nobody sets")
        dist.all_reduce(torch.ones(2))

    return step


def handler() -> Step:
    """One rank catches an exception, and does not come back from looking at it."""

    def step(number: int) -> None:
        try:
            if _odd(number):
                raise ValueError("a bad batch")
        except ValueError:
            time.sleep(STUCK_S)
        dist.all_reduce(torch.ones(2))

    return step


def destroyed() -> Step:
    """One rank ends a group that the others still use."""
    group = dist.new_group()

    def step(number: int) -> None:
        dist.all_reduce(torch.ones(2))
        if _odd(number):
            dist.destroy_process_group(group)
            time.sleep(STUCK_S)
        dist.all_reduce(torch.ones(2), group=group)

    return step


def ring() -> Step:
    """Ring attention: each rank hands keys and values on, all at once."""
    left, right = _neighbours()

    def step(_: int) -> None:
        block = torch.ones(64, 64)
        for _ in range(dist.get_world_size() - 1):
            got = torch.empty_like(block)
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, got, left)]
            ):
                work.wait()
            block = got @ torch.ones(64, 64)
        dist.all_reduce(block)

    return step


def one_f_one_b() -> Step:
    """A pipeline with one forward and one backward in turn: receives block, sends do not."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    micro = 4
    sends: list[tuple[Any, torch.Tensor]] = []

    def forward() -> None:
        block = torch.ones(64, 64)
        if rank > 0:
            dist.recv(block, rank - 1)
        block = block @ block
        if rank < last:
            sends.append((dist.isend(block, rank + 1), block))

    def backward() -> None:
        block = torch.ones(64, 64)
        if rank < last:
            dist.recv(block, rank + 1)
        time.sleep(0.005)
        if rank > 0:
            sends.append((dist.isend(block, rank - 1), block))

    def step(_: int) -> None:
        warm = min(last - rank, micro)
        for _ in range(warm):
            forward()
        for _ in range(micro - warm):
            forward()
            backward()
        for _ in range(warm):
            backward()
        while sends:
            sends.pop()[0].wait()
        dist.all_reduce(torch.ones(4))

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (
        *(swapped_ring, three_groups, stuck_optimizer, stuck_loader, objects, store, handler, destroyed),
        *(ring, one_f_one_b),
    )
}


def run(name: str, folder: str, after_s: float) -> None:
    """Run a program; where it hangs, end this rank after rank 0 has looked."""
    hang_programs.hang(PROGRAMS[name], folder, after_s=after_s)


def left_behind(folder: str) -> dict[str, Any]:
    """Open two sessions one after the other and fork in both; return what this process has meanwhile."""
    before = _kept()
    during = []
    for number, after_s in enumerate((None, 60.0)):
        with audit(out=Path(folder, str(number)), hang_after_s=after_s, gather_limit_s=20.0) as session:
            for _ in range(2):
                with session.step():
                    dist.all_reduce(torch.ones(2))
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            during.append(_kept())
    return {"before": before, "during": during, "after": _kept()}


def _kept() -> dict[str, Any]:
    """Return threads and shared memory of ours, and how many descriptors are open."""
    own = f"-{os.getpid()}-"
    return {
        "threads": sorted(each.name for each in threading.enumerate() if "shardtoll" in each.name),
        "memory": len([name for name in os.listdir(FOLDER) if name.startswith("shardtoll-") and own in name]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
