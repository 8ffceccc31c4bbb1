"""Programs audited without checks: some forget to reduce a gradient, the others only look as if they did.

Each returns the parameters of its findings, with the severity and the place, on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

KIND: Final = "unsynced-parameter"
DIM: Final = 32
STEPS: Final = 3

Step = Callable[[int], None]
Found = list[dict[str, Any]]


class Net(nn.Module):
    """A trunk of two layers and a head, called as one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.head = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.trunk(x))
        return out


def audited(model: nn.Module, step: Step, steps: int = STEPS) -> Found:
    with audit(model) as session:
        for number in range(steps):
            with session.step():
                step(number)
    report = report_of(session, KIND)
    if report is None:
        return []
    rows = report.tables["parameters"].num_rows
    assert bool(rows) == (steps == STEPS), "on record, unless no optimizer stepped"
    return [
        {
            "parameters": list(one.parameters) or [one.where.parameter],
            "severity": one.severity,
            "confidence": one.confidence,
            "source": one.where.source,
            "title": one.title,
        }
        for one in report.findings
    ]


def batch(number: int, part: int | None = None) -> torch.Tensor:
    seed = 100 * number + (dist.get_rank() if part is None else part)
    return torch.randn(8, DIM, generator=torch.Generator().manual_seed(seed))


def trained(
    model: nn.Module,
    reduce: Callable[[list[tuple[str, nn.Parameter]]], None] = lambda named: None,
    part: int | None = None,
) -> Found:
    """Train with AdamW; `reduce` is given the parameters that have a gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        model(batch(number, part)).square().mean().backward()
        reduce([(name, p) for name, p in model.named_parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step)


# -- by hand -----------------------------------------------------------------------------------------------


def averaged(parameters: Iterable[nn.Parameter], group: Any = None) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def by_hand(forgotten: str = "-") -> Found:
    return trained(Net(), lambda named: averaged(p for name, p in named if not name.startswith(forgotten)))


def coalesced(forgotten: str = "-") -> Found:
    """One call of all gradients, of which the record names the first."""

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        gradients = [p.grad for name, p in named if not name.startswith(forgotten) and p.grad is not None]
        dist.all_reduce_coalesced(gradients)
        for gradient in gradients:
            gradient /= dist.get_world_size()

    return trained(Net(), reduce)


def two_calls() -> Found:
    """Four gradients in each of two calls, the last two of ten as a flat tensor in the second."""
    torch.manual_seed(0)

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        gradients = [p.grad for _, p in named if p.grad is not None]
        whole = _flatten_dense_tensors(gradients[8:])
        dist.all_reduce_coalesced(gradients[:4])
        dist.all_reduce_coalesced([*gradients[4:8], whole])
        for mine, new in zip(gradients[8:], _unflatten_dense_tensors(whole, gradients[8:]), strict=True):
            mine.copy_(new)

    return trained(nn.Sequential(*(nn.Linear(DIM, DIM) for _ in range(5))), reduce)


def flat() -> Found:
    """The trunk's by themselves, and all others as one tensor, which names none."""

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        averaged(p for name, p in named if name.startswith("trunk"))
        gradients = [p.grad for name, p in named if name.startswith("head") and p.grad is not None]
        whole = _flatten_dense_tensors(gradients)
        dist.all_reduce(whole)
        for mine, new in zip(gradients, _unflatten_dense_tensors(whole, gradients), strict=True):
            mine.copy_(new / dist.get_world_size())

    return trained(Net(), reduce)


def by_hook(forgotten: str = "-") -> Found:
    """As each gradient is finished, within backward."""
    model = Net()
    for name, parameter in model.named_parameters():
        if not name.startswith(forgotten):
            parameter.register_post_accumulate_grad_hook(lambda p: averaged([p]))
    return trained(model)


def hooked_bucket(dtype: torch.dtype = torch.float32) -> Found:
    """The last of two gradients to be finished sends both, so the record names that one alone."""
    model, waiting = Net(), []

    def ready(parameter: torch.Tensor) -> None:
        waiting.append(parameter)
        if len(waiting) == 2:
            gradients = [each.grad for each in waiting if each.grad is not None]
            whole = _flatten_dense_tensors(gradients).to(dtype)
            dist.all_reduce(whole)
            whole = whole.float()
            for mine, new in zip(gradients, _unflatten_dense_tensors(whole, gradients), strict=True):
                mine.copy_(new / dist.get_world_size())
            waiting.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ready)
    return trained(model)


def frozen() -> Found:
    model = Net()
    model.head.requires_grad_(False)
    return trained(model, lambda named: averaged(p for _, p in named))


def tied() -> Found:
    model = Net()
    model.head.weight = model.trunk[0].weight
    return trained(model, lambda named: averaged(p for _, p in named))


def unused() -> Found:
    model = Net()
    model.register_module("idle", nn.Linear(DIM, DIM))
    return trained(model, lambda named: averaged(p for _, p in named))


def local_sgd() -> Found:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters() if number % 2 else ():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()

    return audited(model, step)


def half_local() -> Found:
    """The trunk's gradients are reduced in each step, the head's values averaged every second one."""
    model = Net()

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        averaged(p for name, p in named if name.startswith("trunk"))
        calls.append(1)
        for parameter in model.head.parameters() if len(calls) % 2 == 0 else ():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()

    calls: list[int] = []
    return trained(model, reduce)


class Summed(torch.autograd.Function):
    """Adds up over all ranks; the loss is one for all of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Divided(Net):
    """Tensor parallelism by hand: the head is each rank's own part of a wider layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Summed.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return out


def divided() -> Found:
    """Its head has equal names and shapes on all ranks, and nothing to reduce."""
    return trained(
        Divided(), lambda named: averaged(p for name, p in named if name.startswith("trunk")), part=0
    )


# -- under wrappers ----------------------------------------------------------------------------------------


def ddp(how: str = "") -> Found:
    net = Net()
    if how == "ignored":
        ignore = ["head.weight", "head.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignore)
    if how == "part":
        net.trunk = DistributedDataParallel(net.trunk)
        return trained(net)
    model = DistributedDataParallel(net)
    if how == "late":
        net.head = nn.Sequential(net.head, nn.Linear(DIM, DIM))
    if how == "late, by hand":
        net.head = nn.Sequential(net.head, nn.Linear(DIM, DIM))
        return trained(model, lambda named: averaged(p for name, p in named if "head.1" in name))
    if how == "inner":
        return by_inner(model)
    return trained(model)


def by_inner(model: DistributedDataParallel) -> Found:
    """The audit is given the module inside of the wrapper, which got a layer that DDP does not know."""
    net = model.module
    net.head = nn.Sequential(net.head, nn.Linear(DIM, DIM))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(net, step)


def accumulating(steps: int) -> Found:
    """Every third step reduces, and updates; with fewer steps on record nobody does."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        last = number % 3 == 2
        with nullcontext() if last else model.no_sync():
            model(batch(number)).square().mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    return audited(model, step, steps)


def ddp_in_fsdp2() -> Found:
    """The head is DDP's, and FSDP2 is given it to ignore."""
    model = Net()
    heads = set(model.head.parameters())
    model.head = DistributedDataParallel(model.head)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    fully_shard(model, mesh=mesh, ignored_params=heads)
    return trained(model)


def fsdp2(how: str = "") -> Found:
    model = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    fully_shard(model.trunk, mesh=mesh)
    if how == "ignored":
        fully_shard(model, mesh=mesh, ignored_params={model.head.weight, model.head.bias})
    elif not how:
        fully_shard(model, mesh=mesh)
    return trained(model)


def fsdp1(how: str = "") -> Found:
    net = Net()
    ignored = [net.head] if how == "ignored" else None
    cpu = torch.device("cpu")
    return trained(
        FullyShardedDataParallel(net, ignored_modules=ignored, use_orig_params=True, device_id=cpu)
    )


CASES: Final[dict[str, Callable[[], Found]]] = {
    "by hand": by_hand,
    "by hand, forgotten": lambda: by_hand("head"),
    "coalesced": coalesced,
    "coalesced, forgotten": lambda: coalesced("head"),
    "flat": flat,
    "by hook": by_hook,
    "by hook, forgotten": lambda: by_hook("head"),
    "hooked bucket": hooked_bucket,
    "hooked bucket, bf16": lambda: hooked_bucket(torch.bfloat16),
    "DDP in FSDP2": ddp_in_fsdp2,
    "two calls of many": two_calls,
    "frozen": frozen,
    "tied": tied,
    "unused": unused,
    "local SGD": local_sgd,
    "half local": half_local,
    "divided": divided,
    "DDP": ddp,
    "DDP, late": lambda: ddp("late"),
    "DDP, late, by hand": lambda: ddp("late, by hand"),
    "DDP, late, inner": lambda: ddp("inner"),
    "DDP, ignored": lambda: ddp("ignored"),
    "DDP, a part": lambda: ddp("part"),
    "accumulating": lambda: accumulating(3),
    "accumulating, no sync seen": lambda: accumulating(2),
    "FSDP2": fsdp2,
    "FSDP2, without the root": lambda: fsdp2("part"),
    "FSDP2, ignored": lambda: fsdp2("ignored"),
    "FSDP1": fsdp1,
    "FSDP1, ignored": lambda: fsdp1("ignored"),
}


def all_cases() -> dict[str, Found]:
    return {name: case() for name, case in CASES.items()}


# -- on four ranks -----------------------------------------------------------------------------------------


def two_d(forgotten: str = "-") -> Found:
    """Tensor parallelism by DTensor over pairs, data parallelism by hand over the others."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Net()
    plan = {"trunk.0": ColwiseParallel(), "trunk.2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    over, size = mesh.get_group("dp"), mesh["dp"].size()

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in named:
            gradient = parameter.grad
            if not name.startswith(forgotten) and gradient is not None:
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(local, group=over)
                local /= size

    return trained(model, reduce, part=mesh["dp"].get_local_rank())


def hierarchical() -> Found:
    """Within each pair first, then between pairs: over neither group of all ranks."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    rank = dist.get_rank()
    inside, across = pairs[rank // 2], pairs[2 + rank % 2]

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        averaged((p for _, p in named), inside)
        averaged((p for _, p in named), across)

    return trained(Net(), reduce)


def expert_groups() -> Found:
    """The head is an expert that ranks 0 and 2, and 1 and 3, have in common; the trunk is everybody's."""
    same = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]

    def reduce(named: list[tuple[str, nn.Parameter]]) -> None:
        averaged(p for name, p in named if name.startswith("trunk"))
        averaged((p for name, p in named if name.startswith("head")), same)

    return trained(Net(), reduce)


def on_four() -> dict[str, Found]:
    return {
        "two_d": two_d(),
        "two_d, a plain layer forgotten": two_d("head"),
        "two_d, a sharded layer forgotten": two_d("trunk.0"),
        "hierarchical": hierarchical(),
        "expert groups": expert_groups(),
    }
