"""Programs that repeat work on several ranks or on one, and others that must not be accused of it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardtoll.profiler import audit
from tests.live.told_kinds import report_of

WIDTH, CLASSES, ROWS, LAYERS = 32, 16, 8, 3


class Block(nn.Module):
    """A norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, blocks, and a head."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, data_rank: int, micro: int = 1
) -> list[dict[str, Any]] | None:
    """Train three steps; rank 0 returns what was found of duplicated work."""
    with audit(model, level="survey") as session:
        for number in range(3):
            torch.manual_seed(100 * number + data_rank)
            tokens, labels = torch.randint(CLASSES, (2, ROWS))
            with session.step():
                for _ in range(micro):
                    cross_entropy(model(tokens), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
    return found(session)


def found(session: Any) -> list[dict[str, Any]] | None:
    report = report_of(session, "duplicated-compute")
    if report is None:
        return None
    assert not [notice for notice in report.notices if notice.kind == "capture-stopped"], report.notices
    return [
        {
            "severity": finding.severity,
            "title": finding.title,
            "op": finding.where.op,
            "phase": finding.where.phase,
            "module": finding.where.module,
            "mesh_dim": finding.where.mesh_dim,
            "confidence": finding.confidence,
            "evidence": {item.label: item.value for item in finding.evidence},
        }
        for finding in report.findings
    ]


def seeded(**given: Any) -> Model:
    torch.manual_seed(0)
    return Model(**given)


def mesh_of(*sizes: int, names: tuple[str, ...]) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def data_parallel(own_data: bool = True, zero: bool = False, micro: int = 1) -> list[dict[str, Any]] | None:
    with warnings.catch_warnings():
        # Its package compiles functions with what torch itself calls deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DistributedDataParallel(seeded())
    parameters = model.parameters()
    optimizer: torch.optim.Optimizer = (
        ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW)
        if zero
        else torch.optim.AdamW(parameters)
    )
    return trained(model, optimizer, dist.get_rank() if own_data else 0, micro)


def sharded(recompute: bool = False) -> list[dict[str, Any]] | None:
    model = seeded(recompute=recompute)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return trained(model, torch.optim.AdamW(model.parameters()), dist.get_rank())


def hybrid() -> list[dict[str, Any]] | None:
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    model = seeded()
    fully_shard(model, mesh=mesh)
    return trained(model, torch.optim.AdamW(model.parameters()), dist.get_rank())


PLAN = {f"layers.{at}.up": ColwiseParallel() for at in range(LAYERS)} | {
    f"layers.{at}.down": RowwiseParallel() for at in range(LAYERS)
}


def tensor_parallel(head: bool = True) -> list[dict[str, Any]] | None:
    """Tensor parallel without sequence parallelism: norms, embedding and loss are whole on every rank."""
    mesh = mesh_of(dist.get_world_size(), names=("tp",))
    model = seeded()
    plan = dict(PLAN)
    if head:
        plan["head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    return trained(model, torch.optim.AdamW(model.parameters()), 0)


def both() -> list[dict[str, Any]] | None:
    """FSDP2 over dp and tensor parallel within it, the head left whole by mistake."""
    mesh = mesh_of(2, 2, names=("dp", "tp"))
    model = seeded()
    parallelize_module(model, mesh["tp"], dict(PLAN))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return trained(model, torch.optim.AdamW(model.parameters()), mesh.get_local_rank("dp"))


def whole_dtensors(recompute: bool = False) -> list[dict[str, Any]] | None:
    """Every parameter and input a replicated DTensor: all is done by all."""
    mesh = mesh_of(dist.get_world_size(), names=("tp",))
    model = distribute_module(seeded(recompute=recompute), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, level="survey") as session:
        for number in range(2):
            torch.manual_seed(number)
            tokens, labels = (
                distribute_tensor(part, mesh, [Replicate()]) for part in torch.randint(CLASSES, (2, ROWS))
            )
            with session.step():
                cross_entropy(model(tokens), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
    return found(session)


class Twice(nn.Module):
    """Projects its input twice by mistake, and apart from that by three layers that begin as copies."""

    def __init__(self, *, mistaken: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second, self.third = copy.deepcopy(self.first), copy.deepcopy(self.first)
        self.mistaken = mistaken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.first(x), self.second(x), self.third(x)
        again = self.first(x) if self.mistaken else query
        return query * key + value * again.tanh()


def twice_on_one_rank(mistaken: bool = True, micro: int = 1) -> list[dict[str, Any]] | None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Twice(mistaken=mistaken))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, level="survey") as session:
        for number in range(3):
            torch.manual_seed(10 * number + dist.get_rank())
            x = torch.randn(ROWS, WIDTH)
            with session.step():
                for _ in range(micro):
                    model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return found(session)


def all_of(names: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Run several of these in one process group."""
    return {key: globals()[name](**given) for key, (name, given) in names.items()}
