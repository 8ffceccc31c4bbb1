"""Small programs whose collectives are needless, each with a sound twin; run under an audit each."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

ROWS = 16
DIM = 32
WHOLE = ROWS * DIM * 4
MICRO_BATCHES = 3
KINDS = ("redundant-collective", "sync-every-microbatch")


def _values(seed: int = 0) -> torch.Tensor:
    """Return values that differ between ranks, ROWS x DIM."""
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(100 * seed + dist.get_rank()))


def _part(whole: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def _gathered(part: torch.Tensor) -> torch.Tensor:
    whole = part.new_empty(part.shape[0] * dist.get_world_size(), *part.shape[1:])
    dist.all_gather_into_tensor(whole, part.contiguous())
    return whole


def gather_cut(_: DeviceMesh) -> torch.Tensor:
    return _part(_gathered(_part(_values()))) * 2


def gather_used(_: DeviceMesh) -> torch.Tensor:
    return _gathered(_part(_values())) * 2


def gather_list_cut(_: DeviceMesh) -> torch.Tensor:
    part = _part(_values()).contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return _part(torch.cat(parts)).square()


def reduce_cut(_: DeviceMesh) -> torch.Tensor:
    values = _values()
    dist.all_reduce(values)
    return _part(values) + 1


def reduce_async_cut(_: DeviceMesh) -> torch.Tensor:
    values = _values()
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    work.wait()
    return _part(values, 1) + 1


def reduce_used(_: DeviceMesh) -> torch.Tensor:
    values = _values()
    dist.all_reduce(values)
    return _part(values) + values.sum()


def dtensor_reduce_cut(mesh: DeviceMesh) -> torch.Tensor:
    summed = DTensor.from_local(_values(), mesh, [Partial()]).redistribute(placements=[Replicate()])
    return summed.redistribute(placements=[Shard(0)]).to_local() * 2


def dtensor_scattered(mesh: DeviceMesh) -> torch.Tensor:
    summed = DTensor.from_local(_values(), mesh, [Partial()])
    return summed.redistribute(placements=[Shard(0)]).to_local() * 2


def cut_gathered(mesh: DeviceMesh, dim: int = 0) -> torch.Tensor:
    same = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    whole = DTensor.from_local(same, mesh, [Replicate()])
    cut = whole.redistribute(placements=[Shard(dim)])
    return cut.redistribute(placements=[Replicate()]).to_local() @ torch.ones(DIM, 2)


def cut_gathered_columns(mesh: DeviceMesh) -> torch.Tensor:
    return cut_gathered(mesh, 1)


def cut_changed_gathered(mesh: DeviceMesh) -> torch.Tensor:
    same = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    cut = DTensor.from_local(same, mesh, [Replicate()]).redistribute(placements=[Shard(0)])
    return (cut * 2).redistribute(placements=[Replicate()]).to_local() @ torch.ones(DIM, 2)


def cut_by_hand(_: DeviceMesh) -> torch.Tensor:
    same = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0)).relu()
    return _gathered(_part(same)).square()


def cut_summed(_: DeviceMesh) -> torch.Tensor:
    """What every rank has of the all_reduce is cut and gathered again."""
    summed = _values()
    dist.all_reduce(summed)
    return _gathered(_part(summed)).square() + summed


def there_and_back(_: DeviceMesh) -> torch.Tensor:
    values, moved, back = _values(), torch.empty(ROWS, DIM), torch.empty(ROWS, DIM)
    dist.all_to_all_single(moved, values)
    dist.all_to_all_single(back, moved)
    return back * 2


def there_work_back(_: DeviceMesh) -> torch.Tensor:
    values, moved, back = _values(), torch.empty(ROWS, DIM), torch.empty(ROWS, DIM)
    dist.all_to_all_single(moved, values)
    dist.all_to_all_single(back, moved.square())
    return back * 2


def equal_reduced(_: DeviceMesh) -> torch.Tensor:
    same = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    dist.all_reduce(same, op=dist.ReduceOp.SUM)
    return same / dist.get_world_size()


def reduced_twice(_: DeviceMesh) -> torch.Tensor:
    values = _values()
    dist.all_reduce(values)
    dist.all_reduce(values)
    return values / dist.get_world_size()


def metrics_reduced(_: DeviceMesh) -> torch.Tensor:
    """What every rank logs: a loss that is equal everywhere, counts, a flag."""
    for metric in (torch.tensor(3.0), torch.arange(8.0), torch.ones(ROWS, DIM)):
        dist.all_reduce(metric)
    return metric


ONCE: dict[str, Callable[[DeviceMesh], torch.Tensor]] = {
    program.__name__: program
    for program in (
        *(gather_cut, gather_used, gather_list_cut, reduce_cut, reduce_async_cut, reduce_used),
        *(dtensor_reduce_cut, dtensor_scattered, cut_gathered, cut_gathered_columns),
        *(cut_changed_gathered, cut_by_hand, there_and_back, there_work_back),
        *(equal_reduced, metrics_reduced, cut_summed, reduced_twice),
    )
}


def _told(report: Any) -> dict[str, Any]:
    found = [
        {"kind": f.kind, "title": f.title, "bytes": f.bytes, "source": f.where.source, "op": f.where.op}
        for f in report.findings
        if f.kind in KINDS
    ]
    frame = report.collectives
    return {
        "findings": found,
        "stopped": report.tables["notices"].column("kind").to_pylist(),
        "used": frame["used_bytes"].astype(object).where(frame["used_bytes"].notna(), None).tolist(),
    }


def once(names: list[str]) -> dict[str, Any] | None:
    """Run each program once, without and with an audit; return what was found, and that values are equal."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    answer = {}
    for name in names:
        plain = ONCE[name](mesh)
        with audit(level="survey") as session:
            audited = ONCE[name](mesh)
        assert torch.equal(plain, audited), name
        report = report_of(session, *KINDS, "implicit-redistribute")
        if report is not None:
            answer[name] = _told(report)
    return answer or None


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, DIM, bias=False)
        self.down = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


GRADIENT_BYTES = 2 * DIM * DIM * 4


def _ddp(plain: nn.Module) -> nn.Module:
    return DistributedDataParallel(plain, bucket_cap_mb=0.003)


def _fsdp1(plain: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(plain, device_id=torch.device("cpu"))


def _fsdp2(plain: nn.Module) -> nn.Module:
    fully_shard(plain, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",)))
    return plain


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": _ddp,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "by_hand": lambda plain: plain,
}


def _around(model: nn.Module, wrapper: str, syncs: bool) -> contextlib.AbstractContextManager[Any]:
    if wrapper == "fsdp2":
        model.set_requires_gradient_sync(syncs)  # type: ignore[operator]
    elif wrapper in ("ddp", "fsdp1") and not syncs:
        waiting: contextlib.AbstractContextManager[Any] = model.no_sync()  # type: ignore[operator]
        return waiting
    return contextlib.nullcontext()


def accumulated(wrappers: list[str], steps_are: str = "optimizer") -> dict[str, Any] | None:
    """Train with MICRO_BATCHES a step, syncing always (`bad`) or with the last (`good`).

    `steps_are`: whether an audit step is an optimizer's step or a micro-batch.
    """
    torch.manual_seed(0)
    plain = Two()
    answer = {}
    for wrapper in wrappers:
        for case in ("bad", "good"):
            model = WRAPPERS[wrapper](copy.deepcopy(plain))
            optimizer = torch.optim.AdamW(model.parameters())
            with audit(model, level="survey") as session:
                for _ in range(2):
                    with contextlib.ExitStack() as whole:
                        if steps_are == "optimizer":
                            whole.enter_context(session.step())
                        for micro in range(MICRO_BATCHES):
                            last = micro == MICRO_BATCHES - 1
                            with contextlib.ExitStack() as one:
                                if steps_are == "micro-batch":
                                    one.enter_context(session.step())
                                with _around(model, wrapper, last or case == "bad"):
                                    model(_values(micro)).square().mean().backward()
                                if wrapper == "by_hand" and (last or case == "bad"):
                                    for parameter in model.parameters():
                                        dist.all_reduce(parameter.grad)
                                if last:
                                    optimizer.step()
                                    optimizer.zero_grad()
            report = report_of(session, *KINDS, "implicit-redistribute")
            if report is not None:
                answer[f"{wrapper} {case}"] = _told(report)
    return answer or None


def several_models() -> dict[str, Any] | None:
    """Train two DDP models in one step, each with a backward of its own; return what is found."""
    torch.manual_seed(0)
    one, other = DistributedDataParallel(Two()), DistributedDataParallel(Two())
    both = nn.ModuleList([one, other])
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    with audit(both, level="survey") as session:
        for number in range(2):
            with session.step():
                for model in (one, other):
                    model(_values(number)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    report = report_of(session, *KINDS, "implicit-redistribute")
    return None if report is None else _told(report)
