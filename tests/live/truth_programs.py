"""Small programs with one mistake each in their gradients or data, and sound ones that look alike.

Each returns the findings of gradient and data truth, on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from shardtoll.samples.strategies import clipping, common, expert_parallel, fsdp1, tensor_parallel, two_d
from tests.live.told_kinds import report_of

KINDS = ("wrong-gradient", "replica-drift", "unsynced-parameter", "duplicated-data")
STEPS = 3
DIM = 16

Step = Callable[[int], None]


def audited(model: nn.Module, step: Step, steps: int = STEPS) -> list[dict[str, Any]]:
    with audit(model, checks=("gradients", "replicas", "data")) as session:
        for number in range(steps):
            with session.step():
                step(number)
    report = report_of(session, *KINDS)
    if report is None:
        return []
    stopped = [row["text"] for row in report.tables["notices"].to_pylist() if "stopped" in row["kind"]]
    assert not stopped, stopped
    values = report.tables["values"].to_pylist()
    assert {row["kind"] for row in values} >= {"gradient", "parameter"}
    return [
        {
            "kind": one.kind,
            "title": one.title,
            "severity": one.severity,
            "confidence": one.confidence,
            "parameter": one.where.parameter,
            "mesh_dim": one.where.mesh_dim,
            "op": one.where.op,
            "ranks": list(one.ranks),
            "code": one.remedy.code if one.remedy else None,
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


def by_hand(reduce: Callable[[str, nn.Parameter], None], optimizer: str = "SGD") -> list[dict[str, Any]]:
    """Train plain replicas whose gradients `reduce` makes whole."""
    model = net()
    stepper = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        for name, parameter in model.named_parameters():
            reduce(name, parameter)
        stepper.step()
        stepper.zero_grad()

    return audited(model, step)


def averaged(name: str, parameter: nn.Parameter) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def left_out(name: str, parameter: nn.Parameter) -> None:
    if name != "2.weight":
        averaged(name, parameter)


def doubled(name: str, parameter: nn.Parameter) -> None:
    dist.all_reduce(parameter.grad)
    if name == "0.weight":
        dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def hand_right() -> list[dict[str, Any]]:
    return by_hand(averaged)


def hand_left_out() -> list[dict[str, Any]]:
    return by_hand(left_out, "AdamW")


def hand_doubled() -> list[dict[str, Any]]:
    return by_hand(doubled)


def hand_nothing() -> list[dict[str, Any]]:
    return by_hand(lambda name, parameter: None)


def hand_pairs() -> list[dict[str, Any]]:
    """Four ranks; one parameter is reduced over pairs of them only."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]

    def reduce(name: str, parameter: nn.Parameter) -> None:
        if name == "2.weight":
            dist.all_reduce(parameter.grad, group=mine)
            parameter.grad /= 2
        else:
            averaged(name, parameter)

    return by_hand(reduce)


def ddp_step(model: nn.Module, after: Callable[[], None] = lambda: None, data: Any = batch) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        model(data(number)).square().mean().backward()
        after()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp_right() -> list[dict[str, Any]]:
    model = DistributedDataParallel(net())
    return audited(model, ddp_step(model))


def ddp_reduced_again() -> list[dict[str, Any]]:
    model = DistributedDataParallel(net())

    def again() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return audited(model, ddp_step(model, again))


def ddp_never_synced() -> list[dict[str, Any]]:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        with model.no_sync():
            model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step)


def ddp_micro_batches_as_steps() -> list[dict[str, Any]]:
    """Sound: a step of the audit is a micro-batch, and every second one is reduced and used."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        if number % 2 == 0:
            with model.no_sync():
                model(batch(number)).square().mean().backward()
            return
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step, 4)


def ddp_norm_by_hand() -> list[dict[str, Any]]:
    """The squares of replicated gradients are added up over ranks."""
    model = DistributedDataParallel(net())

    def clip() -> None:
        total = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
        dist.all_reduce(total)
        for parameter in model.parameters():
            parameter.grad *= (100.0 / (total.sqrt() + 1e-6)).clamp(max=1.0)

    return audited(model, ddp_step(model, clip))


def fsdp2(reshape: Callable[[nn.Sequential], None] = lambda model: None) -> nn.Sequential:
    model = net()
    reshape(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2_same_data() -> list[dict[str, Any]]:
    model = fsdp2()
    return audited(model, ddp_step(model, data=lambda number: batch(number, 0)))


def fsdp2_local_norm() -> list[dict[str, Any]]:
    """Each rank clips by the norm of its own shards."""
    model = fsdp2()

    def clip() -> None:
        shards = [nn.Parameter(p.to_local().detach()) for p in model.parameters()]
        for shard, parameter in zip(shards, model.parameters(), strict=True):
            shard.grad = parameter.grad.to_local()
        nn.utils.clip_grad_norm_(shards, 0.01)

    return audited(model, ddp_step(model, clip))


def fsdp2_evaluated() -> list[dict[str, Any]]:
    """Evaluation at the end of a step leaves the root's parameters gathered until the next backward."""
    model = fsdp2()
    train = ddp_step(model)

    def step(number: int) -> None:
        train(number)
        with torch.no_grad():
            for again in (1, 2):
                model(batch(100 * again + number))

    # A step before, so that all that are looked at begin with gathered parameters.
    step(STEPS)
    return audited(model, step)


def fsdp2_late() -> list[dict[str, Any]]:
    model = fsdp2()
    model.append(nn.Linear(DIM, DIM))
    return audited(model, ddp_step(model))


class Unused(nn.Module):
    """Has a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Linear(DIM, DIM)
        self.idle = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out


def ddp_unused() -> list[dict[str, Any]]:
    model = DistributedDataParallel(Unused(), find_unused_parameters=True)
    return audited(model, ddp_step(model))


class LocalNorm(nn.Module):
    """Sequence parallelism by hand: a norm works on this rank's tokens, the matrix is replicated work."""

    def __init__(self, dtensor: bool, grad: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        weight = torch.ones(DIM)
        self.norm = nn.Parameter(distribute_tensor(weight, self.mesh, [Replicate()]) if dtensor else weight)
        self.out = nn.Parameter(distribute_tensor(torch.randn(DIM, DIM), self.mesh, [Replicate()]))
        self.grad = grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import Shard

        weight: Any = self.norm
        if isinstance(weight, DTensor):
            weight = weight.to_local(grad_placements=self.grad)
        own = x.chunk(dist.get_world_size())[dist.get_rank()]
        normed = nn.functional.layer_norm(own, (DIM,)) * weight
        whole = DTensor.from_local(normed, self.mesh, [Shard(0)]).redistribute(placements=[Replicate()])
        return (whole @ self.out).to_local()


def norm_step(model: LocalNorm, after: Callable[[], None] = lambda: None) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        model(batch(number, 0)).square().mean().backward()
        after()
        optimizer.step()
        optimizer.zero_grad()

    return step


def norm_dtensor() -> list[dict[str, Any]]:
    model = LocalNorm(True, None)
    return audited(model, norm_step(model))


def norm_dtensor_right() -> list[dict[str, Any]]:
    model = LocalNorm(True, [Partial()])
    return audited(model, norm_step(model))


def norm_plain() -> list[dict[str, Any]]:
    model = LocalNorm(False, None)
    return audited(model, norm_step(model))


def norm_plain_right() -> list[dict[str, Any]]:
    model = LocalNorm(False, None)
    group = model.mesh.get_group("tp")
    return audited(model, norm_step(model, lambda: dist.all_reduce(model.norm.grad, group=group)))


class Detached(nn.Module):
    """A replicated parameter that one rank takes out of autograd."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        self.scale = nn.Parameter(distribute_tensor(torch.randn(DIM, DIM), self.mesh, [Replicate()]))
        self.out = nn.Parameter(distribute_tensor(torch.randn(DIM, DIM), self.mesh, [Replicate()]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, out = (parameter.to_local() for parameter in (self.scale, self.out))  # type: ignore[attr-defined]
        if dist.get_rank() == 1:
            scale = scale.detach()
        whole: torch.Tensor = x @ scale @ out
        return whole


def detached() -> list[dict[str, Any]]:
    model = Detached()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        model(batch(number, 0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return audited(model, step)


def strategy(build: common.Build) -> list[dict[str, Any]]:
    """Train a strategy sample, as it stands, under all checks."""
    job = build(common.Options(), torch.device("cpu"))

    def step(number: int) -> None:
        job.step(number)

    return audited(job.model, step)


CASES = (
    "hand_right",
    "hand_left_out",
    "hand_doubled",
    "hand_nothing",
    "ddp_right",
    "ddp_reduced_again",
    "ddp_never_synced",
    "ddp_micro_batches_as_steps",
    "ddp_norm_by_hand",
    "ddp_unused",
    "fsdp2_same_data",
    "fsdp2_evaluated",
    "fsdp2_local_norm",
    "fsdp2_late",
    "norm_dtensor",
    "norm_dtensor_right",
    "norm_plain",
    "norm_plain_right",
    "detached",
)


def all_cases() -> dict[str, list[dict[str, Any]]]:
    return {name: globals()[name]() for name in CASES}


def on_four() -> dict[str, list[dict[str, Any]]]:
    """What needs four ranks: a wrong sub-group, and the samples of mixed strategies."""
    return {
        "hand_pairs": hand_pairs(),
        "two_d": strategy(two_d.VARIANTS["sequence"]),
        "tensor": strategy(tensor_parallel.VARIANTS["sequence"]),
        "experts": strategy(expert_parallel.VARIANTS["even"]),
        "fsdp1": strategy(fsdp1.VARIANTS["full_shard"]),
        "clipping": strategy(clipping.VARIANTS["by_hand"]),
    }
