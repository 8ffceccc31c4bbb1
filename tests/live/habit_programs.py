"""The samples' habits and their sound twins, several in one job, and programs that only look like them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Report
from shardtoll.profiler import audit
from shardtoll.samples.habits import programs
from shardtoll.samples.habits.run import STEPS, trained
from tests.live.told_kinds import report_of

Found = list[dict[str, Any]]

KIND_OF = {
    "barrier": "needless-barrier",
    "buffers": "constant-buffers",
    "unused": "unused-parameter-search",
    "hooks": "redundant-collective",
    "twice": "redundant-collective",
    "zero": "missing-zero-grad",
    "experts": "expert-imbalance",
    "logits": "gathered-logits",
}
KINDS = tuple(sorted(set(KIND_OF.values())))


def told(report: Report | None) -> Found:
    if report is None:
        return []
    return [
        {
            "kind": finding.kind,
            "severity": finding.severity,
            "confidence": finding.confidence,
            "title": finding.title,
            "code": finding.remedy.code if finding.remedy is not None else None,
            "source": finding.where.source,
        }
        for finding in report.findings
    ]


def run_habits(names: Sequence[str]) -> dict[str, dict[str, Found]]:
    """Return what is found of each habit and of its sound twin."""
    return {
        name: {
            twin: told(report_of(trained(name, fixed=twin == "fixed"), *KINDS)) for twin in ("bad", "fixed")
        }
        for name in names
    }


def run_look_alikes() -> dict[str, Found]:
    """Return what is found of programs that are sound and look like a habit."""
    return {name: told(_audited(make())) for name, make in LOOK_ALIKES.items()}


def _audited(loop: programs.Loop, steps: int = STEPS) -> Report | None:
    with audit(loop.model) as session:
        for number in range(steps):
            with session.step():
                loop.step(number)
    return report_of(session, *KINDS)


def saving() -> programs.Loop:
    """A barrier before each fourth step's checkpoint."""
    loop = programs.barrier(fixed=True)

    def step(number: int) -> None:
        loop.step(number)
        if number % 4 == 3:
            dist.barrier()

    return programs.Loop(loop.model, step)


def statistics() -> programs.Loop:
    """Buffers that change: running statistics of a batch norm."""
    return programs.trained(
        DistributedDataParallel(nn.Sequential(programs.Block(table=True), nn.BatchNorm1d(programs.WIDTH)))
    )


class Branches(nn.Module):
    """Takes another branch in each other step."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(programs.Block() for _ in range(2))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.branches[self.calls % 2](x)
        return out


def branches() -> programs.Loop:
    """Some parameters are unused in each step."""
    return programs.trained(DistributedDataParallel(Branches(), find_unused_parameters=True))


def _plain(wrap: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = DistributedDataParallel(programs.Block()) if wrap else programs.Block()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def accumulating() -> programs.Loop:
    """Four backwards add up for each step of the optimizer, which is cleared before the first."""
    model, optimizer = _plain()

    def step(number: int) -> None:
        if number % 4 == 0:
            optimizer.zero_grad()
        model(programs.batch(number)).square().mean().backward()
        if number % 4 == 3:
            optimizer.step()

    return programs.Loop(model, step)


def zeros() -> programs.Loop:
    """Gradients are filled with zeros, before the backward."""
    model, optimizer = _plain()

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(programs.batch(number)).square().mean().backward()
        optimizer.step()

    return programs.Loop(model, step)


def by_data() -> programs.Loop:
    """The old way to fill them with zeros, of which the gradient itself knows nothing."""
    model, optimizer = _plain()

    def step(number: int) -> None:
        model(programs.batch(number)).square().mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data.fill_(0)

    return programs.Loop(model, step)


def two_optimizers() -> programs.Loop:
    """A generator's backward adds to the critic's gradients, which are cleared before the critic's own."""
    maker, critic = (DistributedDataParallel(programs.Block()) for _ in range(2))
    makes, judges = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, critic))

    def step(number: int) -> None:
        judges.zero_grad()
        critic(programs.batch(number)).square().mean().backward()
        judges.step()
        makes.zero_grad()
        critic(maker(programs.batch(number))).mean().backward()
        makes.step()

    return programs.Loop(nn.ModuleList([maker, critic]), step)


def decaying() -> programs.Loop:
    """A momentum made by hand: a part of each gradient is kept for the next step."""
    model, optimizer = _plain()

    def step(number: int) -> None:
        model(programs.batch(number)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.9)

    return programs.Loop(model, step)


class Ulysses(nn.Module):
    """Attention over sequences that are cut among the ranks: all tokens of some heads, and back.

    `heads` are those of each rank, `uneven` whether ranks have tokens of different number in each step.
    """

    def __init__(self, heads: Sequence[int]) -> None:
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(programs.WIDTH, programs.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, each = dist.get_rank(), programs.WIDTH // sum(self.heads)
        tokens = [torch.empty(1, dtype=torch.int64) for _ in self.heads]
        dist.all_gather(tokens, torch.tensor([len(x)]))
        theirs = [int(count) for count in tokens]
        mine = self.heads[rank] * each
        parts = x.split([count * each for count in self.heads], dim=1)
        sent, got = [part.numel() for part in parts], [count * mine for count in theirs]
        flat = torch.cat([part.reshape(-1) for part in parts])
        here = all_to_all_single_autograd(flat, got, sent, dist.group.WORLD).view(sum(theirs), mine)
        mixed = here * self.proj.weight[:mine, :mine].sum() + here @ self.proj.weight[:mine, :mine]
        back = all_to_all_single_autograd(mixed.reshape(-1), sent, got, dist.group.WORLD)
        shapes = [(len(x), count * each) for count in self.heads]
        return torch.cat([b.view(shape) for b, shape in zip(back.split(sent), shapes, strict=True)], dim=1)


def _attending(heads: Sequence[int], *, uneven: bool = False) -> programs.Loop:
    model = Ulysses(heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        rows = 8 + (5 * (number + 3 * dist.get_rank())) % 23 if uneven else programs.ROWS
        model(programs.batch(number)[:rows]).square().mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    return programs.Loop(model, step)


def even_heads() -> programs.Loop:
    """Ulysses: the splits are equal."""
    return _attending((2, 2))


def uneven_heads() -> programs.Loop:
    """Ulysses with three heads for the one rank and one for the other, in each step."""
    return _attending((3, 1))


def uneven_sequences() -> programs.Loop:
    """Sequences of another length on each rank and in each step: what brings back is uneven."""
    return _attending((2, 2), uneven=True)


def uneven_both() -> programs.Loop:
    """Three heads and one, of sequences that change."""
    return _attending((3, 1), uneven=True)


def _with_head(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], whole: Any) -> programs.Loop:
    """A head by columns whose result is put together as `whole` says."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(programs.Block(), nn.Linear(programs.WIDTH, programs.CLASSES))
    parallelize_module(model, mesh, {"1": whole})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        x, labels = _tokens(number)
        loss(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return programs.Loop(model, step)


def smoothed() -> programs.Loop:
    """Labels are smoothed, which loss_parallel cannot do."""
    whole = ColwiseParallel(output_layouts=Replicate())
    return _with_head(lambda out, labels: F.cross_entropy(out, labels, label_smoothing=0.1), whole)


def probabilities() -> programs.Loop:
    """The loss is against probabilities of all classes."""
    whole = ColwiseParallel(output_layouts=Replicate())

    def loss(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, F.one_hot(labels, programs.CLASSES).float())

    return _with_head(loss, whole)


def regression() -> programs.Loop:
    """A gathered result that is compared, and with which no class is chosen."""
    whole = ColwiseParallel(output_layouts=Replicate())
    return _with_head(lambda out, labels: (out - labels[:, None]).square().mean(), whole)


def features() -> programs.Loop:
    """What is gathered has features that a head after it makes logits of."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(
        nn.Linear(programs.WIDTH, programs.WIDTH), nn.Linear(programs.WIDTH, programs.WIDTH)
    )
    parallelize_module(model, mesh, {"0": ColwiseParallel(output_layouts=Replicate())})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int) -> None:
        x = programs.batch(0)
        F.cross_entropy(model(x), torch.arange(len(x))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return programs.Loop(model, step)


LOOK_ALIKES: dict[str, Callable[[], programs.Loop]] = {
    "saving": saving,
    "statistics": statistics,
    "branches": branches,
    "accumulating": accumulating,
    "zeros": zeros,
    "by data": by_data,
    "two optimizers": two_optimizers,
    "decaying": decaying,
    "even heads": even_heads,
    "uneven heads": uneven_heads,
    "uneven sequences": uneven_sequences,
    "uneven both": uneven_both,
    "smoothed": smoothed,
    "probabilities": probabilities,
    "regression": regression,
    "features": features,
}


def run_code(codes: Sequence[str]) -> list[list[float]]:
    """Train with DDP made by each of the remedies' lines, and as it was; return the weights' sums.

    A remedy is right if its line runs, warns of nothing, and the weights are the same.
    """
    sums = []
    for code in (None, *codes):
        torch.manual_seed(0)
        model: Any = programs.Block(table=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scope = {"DistributedDataParallel": DistributedDataParallel, "model": model}
            wrapped = eval(code, scope) if code else DistributedDataParallel(model)
            loop = programs.trained(wrapped)
            for number in range(3):
                loop.step(number)
        sums.append([float(parameter.double().sum()) for parameter in wrapped.parameters()])
    return sums


def run_without_hooks(codes: Sequence[str]) -> list[list[float]]:
    """Train with hooks that average gradients, and with each handle treated as the remedy says."""
    sums = []
    for lines in ([], codes):
        torch.manual_seed(0)
        block = programs.Block()
        for parameter in block.parameters():
            handle = parameter.register_hook(programs.averaged)
            for code in lines:
                exec(code, {"handle": handle})
        loop = programs.trained(DistributedDataParallel(block))
        for number in range(3):
            loop.step(number)
        sums.append([float(parameter.double().sum()) for parameter in block.parameters()])
    return sums


def run_gathered_by_hand() -> Found:
    """Return what is found where a program gathers the classes of its logits by itself."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = nn.Sequential(programs.Block(), nn.Linear(programs.WIDTH, programs.CLASSES))
    parallelize_module(model, mesh, {"1": ColwiseParallel()})

    def step(number: int) -> None:
        x, labels = _tokens(number)
        part = model(x).detach()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part, group=mesh.get_group("tp"))
        F.cross_entropy(torch.cat(parts, -1), labels)

    return told(_audited(programs.Loop(model, step)))


def _tokens(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(programs.ROWS, programs.WIDTH, generator=generator)
    return x, torch.randint(programs.CLASSES, (programs.ROWS,), generator=generator)


def run_logits(codes: Sequence[str]) -> list[list[float]]:
    """Return sums of the weights after steps with gathered logits, and with each remedy's lines instead."""
    sums = []
    for code in (None, *codes):
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        model = nn.Sequential(programs.Block(), nn.Linear(programs.WIDTH, programs.CLASSES))
        plan = {"1": ColwiseParallel(output_layouts=Replicate())}
        scope: dict[str, Any] = {"plan": plan, "mesh": mesh, "ColwiseParallel": ColwiseParallel, "F": F}
        scope |= {"Shard": Shard, "DTensor": DTensor, "loss_parallel": loss_parallel}
        before, _, loss = (code or "\nF.cross_entropy(logits, labels).backward()").partition("\n")
        if before.startswith("plan"):
            exec(before, scope)
            before = ""
        elif before:
            plan["1"] = ColwiseParallel()
        parallelize_module(model, mesh, plan)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            x, scope["labels"] = _tokens(number)
            scope["logits"] = scope["part"] = model(x)
            exec(before, scope)
            exec(loss, scope)
            optimizer.step()
            optimizer.zero_grad()
        weights: Any = [*model.parameters()]
        whole = [weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in weights]
        sums.append([float(weight.detach().double().square().sum()) for weight in whole])
    return sums


def run_called_once() -> list[list[float]]:
    """Train a module called twice per step, and once with both inputs, as the remedy says."""
    sums = []
    for fixed in (False, True):
        torch.manual_seed(0)
        loop = programs.twice(fixed)
        for number in range(3):
            loop.step(number)
        weights: Any = list(loop.model.parameters())
        sums.append([float(weight.full_tensor().double().sum()) for weight in weights])
    return sums


RESHARDED = 2
RESHARDED_BYTES = RESHARDED * 4 * 2 * (programs.WIDTH**2 + programs.WIDTH)
"""Of two blocks of two layers, whole."""


def run_resharding() -> str | None:
    """Train blocks as FSDP2 shards them by default."""
    model = nn.Sequential(*(programs.Block() for _ in range(RESHARDED)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    report = _audited(programs.trained(model))
    return None if report is None else report.to_json()
