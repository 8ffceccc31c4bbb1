"""Programs for one GPU: NCCL groups of one rank, streams that wait, ranks that share the device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.autograd import DeviceType
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from tests.live.programs import D, blocks

STEPS = 4
ROWS = 64
SHORT = 4_000_000
"""Cycles of the device's clock: some ms."""
LONG = 10 * SHORT

Step = Callable[[], torch.Tensor]


def _trained(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(ROWS, D, device="cuda")

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def ddp() -> tuple[nn.Module, Step]:
    model = DistributedDataParallel(blocks().cuda())
    return model, _trained(model)


def fsdp2() -> tuple[nn.Module, Step]:
    model = blocks().cuda()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model, _trained(model)


def functional() -> tuple[nn.Module, Step]:
    model = nn.Linear(D, D).cuda()
    x = torch.randn(ROWS, D, device="cuda")

    @torch.no_grad()
    def step() -> torch.Tensor:
        summed = funcol.all_reduce(model(x), "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(summed + 1, 0, dist.group.WORLD)
        own = torch.ones(ROWS, device="cuda")
        dist.all_reduce(own)
        later = torch.ones(ROWS, D, device="cuda")
        work = dist.all_reduce(later, async_op=True)
        total = gathered.sum() + own.sum()
        work.wait()
        return (total + later.sum()).detach()

    return model, step


MODELS = {"ddp": ddp, "fsdp2": fsdp2, "functional": functional}


def _made(kind: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model, step = MODELS[kind]()
    # What torch, NCCL and cuBLAS do once is over after it.
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    return model, step


@contextlib.contextmanager
def _no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _bits(losses: list[torch.Tensor]) -> list[str]:
    return [float(loss).hex() for loss in losses]


def _rows(session: Any) -> dict[str, Any]:
    tables = session.ledger.tables
    return {name: tables[name].to_pylist() for name in ("steps", "collectives", "counts", "notices")}


def audited(kind: str, level: str) -> dict[str, Any]:
    """The same steps bare and audited, neither with a synchronisation inside."""
    bare_step = _made(kind)[1]
    bare = []
    for _ in range(STEPS):
        with _no_synchronisation():
            bare.append(bare_step())
    model, step = _made(kind)
    losses = []
    with audit(model, level=level) as session:
        for _ in range(STEPS):
            with session.step(), _no_synchronisation():
                losses.append(step())
    report = session.report()
    assert report is not None
    return {
        "bare": _bits(bare),
        "losses": _bits(losses),
        "device": session.ledger.run.device,
        "findings": [finding.kind for finding in report.findings],
        **_rows(session),
    }


def _kernels(work: Callable[[], Any]) -> list[list[str]]:
    """Names of what the device ran, in order, a list for each stream."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize()
    events = [event for event in profiler.profiler.kineto_results.events() if _on_device(event)]
    streams: dict[int, list[str]] = {}
    for event in sorted(events, key=lambda event: event.start_ns()):
        streams.setdefault(event.device_resource_id(), []).append(event.name())
    return sorted(streams.values(), key=lambda names: (len(names), names))


def _on_device(event: Any) -> bool:
    # Annotations of the program are drawn on the device's time line too.
    is_annotation = getattr(event, "is_user_annotation", lambda: False)()
    synchronises = event.name().endswith((" Sync", "Synchronize"))
    return event.device_type() == DeviceType.CUDA and not is_annotation and not synchronises


def kernels(kind: str, level: str) -> dict[str, Any]:
    """What the device runs for one step, bare and audited."""
    model, step = _made(kind)
    bare = _kernels(step)
    found: list[list[str]] = []
    with audit(model, level=level) as session:
        for number in range(3):
            with session.step():
                if number != 1:
                    step()
                else:
                    found = _kernels(step)
    torch.cuda.synchronize()
    return {"bare": bare, "audited": found}


def _elapsed_ns(work: Callable[[], None]) -> int:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    work()
    ended.record()
    torch.cuda.synchronize()
    return round(begun.elapsed_time(ended) * 1e6)


def overlap(compute: int, transfer: int) -> dict[str, Any]:
    """A collective behind `transfer` cycles on a side stream, waited for after `compute` cycles.

    As FSDP2 waits: by an event of the side stream, not by the collective's handle.
    """
    side = torch.cuda.Stream()
    here, there = torch.ones(1024, device="cuda"), torch.empty(1024, device="cuda")

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(transfer)
            dist.all_gather([there], here)
            done = side.record_event()
        torch.cuda._sleep(compute)
        torch.cuda.current_stream().wait_event(done)
        here.add_(1)

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    short_ns = _elapsed_ns(lambda: torch.cuda._sleep(SHORT))
    with audit() as session:
        with session.step():
            step()
    return {"short_ns": short_ns, "device": session.ledger.run.device, **_rows(session)}


def shared_device() -> dict[str, Any]:
    """A gloo rank of several on one GPU: DDP, and a collective of the program's own."""
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    model = DistributedDataParallel(blocks().cuda())
    step = _trained(model)
    # DDP arranges its buckets anew after the first step, and tells all ranks how.
    for _ in range(2):
        step()
    own = torch.ones(1000, device="cuda")
    with audit(model, level="survey") as session:
        for _ in range(2):
            with session.step():
                step()
                dist.all_reduce(own)
    assert dist.get_rank() == int(os.environ["RANK"])
    return {} if session.ledger is None else _rows(session)
