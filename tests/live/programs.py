"""Small training programs with closed-form communication, run by live tests on real ranks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.live.told_kinds import report_of

D = 32
HIDDEN = 64
BATCH = 8


class MLP(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(D, HIDDEN, bias=bias)
        self.down = nn.Linear(HIDDEN, D, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def blocks(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*[MLP() for _ in range(count)])


def train_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> float:
    loss = model(x).square().mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def make(kind: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model parallelised as `kind` says, and what makes its input."""
    world = dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = blocks()
    if kind == "ddp":
        # Small enough for several buckets.
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for block in model:  # type: ignore[attr-defined]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        for block in model:  # type: ignore[attr-defined]
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        assert kind == "plain"
    # Tensor-parallel ranks share a batch, and its gradient is asked for as a deeper model would.
    seed = 0 if kind == "tp" else dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return model, lambda: torch.randn(BATCH, D, generator=generator).requires_grad_(kind == "tp")


def collectives_of(kind: str, steps: int = 2) -> dict[str, Any]:
    """Train under an audit; return rank 0's rows of every rank, and this rank's loss."""
    from shardtoll.profiler import audit

    model, batch = make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [train_step(model, batch(), optimizer)]
    with audit(model, level="survey") as session:
        for _ in range(steps):
            with session.step():
                losses.append(train_step(model, batch(), optimizer))
    ledger = session.ledger
    rows = {name: table.to_pylist() for name, table in ledger.tables.items()} if ledger else None
    return {"losses": losses, "rows": rows, "mesh": dict(ledger.run.mesh) if ledger else None}


def bits_of(kind: str, audited: bool) -> dict[str, Any]:
    """Train three steps with or without an audit; return exact losses, gradients and RNG state."""
    from shardtoll.profiler import audit

    model, batch = make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[str] = []

    def steps(around: Callable[[], Any]) -> None:
        for _ in range(3):
            with around():
                noise = torch.dropout(batch(), 0.5, train=True)
                loss = model(noise).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().numpy().tobytes().hex())

    if audited:
        with audit(model, level="survey") as session:
            steps(session.step)
    else:
        steps(contextlib.nullcontext)
    gradients = []
    for parameter in model.parameters():
        grad = parameter.grad
        local = getattr(grad, "_local_tensor", grad)
        gradients.append(local.detach().numpy().tobytes().hex())
    return {"losses": losses, "gradients": gradients, "rng": torch.get_rng_state().sum().item()}


def killed_in_step(out: str, victim: int, fatal_step: int) -> dict[str, Any] | None:
    """Train with DDP-like reductions by hand; one rank is killed in mid-step. Returns the bill's words."""
    from shardtoll.profiler import audit

    rank = dist.get_rank()
    model = blocks()
    started = time.monotonic()
    try:
        with audit(model, out=out, level="survey") as session:
            for step in range(fatal_step + 1):
                with session.step():
                    model(torch.randn(BATCH, D)).square().mean().backward()
                    if step == fatal_step and rank == victim:
                        os.kill(os.getpid(), signal.SIGKILL)
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad)
    except RuntimeError:
        # The survivors' collective fails: gloo's connection to the dead rank is closed.
        pass
    left_s = time.monotonic() - started
    if rank != 0:
        return {"left_s": left_s}
    report = session.report()
    assert report is not None
    return {"left_s": left_s, "titles": [f"{f.kind}: {f.title}" for f in report.findings]}


def killed_in_a_long_step(out: str, victim: int) -> list[int] | None:
    """Run short watched steps, then one that lasts, in which a rank is killed. Returns the steps begun."""
    from shardtoll.profiler import audit

    rank, done = dist.get_rank(), 0
    try:
        with audit(out=out, level="watch", survey_every=10_000) as session:
            while True:
                stop = torch.tensor(float(done > 20 and len(session.capture._watch.ended) > 3))
                with session.step():
                    # Not all ranks make rows at the same time.
                    dist.broadcast(stop, victim)
                    if stop and rank == victim:
                        Path(out, "finished").write_text(str(done))
                        time.sleep(0.5)
                        os.kill(os.getpid(), signal.SIGKILL)
                    dist.all_reduce(torch.ones(BATCH))
                done += 1
    except RuntimeError:
        pass
    return [done]


def failing_capture() -> dict[str, Any]:
    """Break the capture from within in the middle of a step; training must not notice."""
    from shardtoll.profiler import audit
    from shardtoll.profiler.live.capture.recorder import Recorder

    model, batch = make("ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [train_step(model, batch(), optimizer)]
    seen = logging.getLogger("shardtoll")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    seen.addHandler(handler)
    original = Recorder.issued
    with audit(model, level="survey") as session:
        with session.step():
            losses.append(train_step(model, batch(), optimizer))

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("planted")

        Recorder.issued = broken  # type: ignore[method-assign]
        for _ in range(2):
            with session.step():
                losses.append(train_step(model, batch(), optimizer))
    Recorder.issued = original  # type: ignore[method-assign]
    seen.removeHandler(handler)
    report = session.report()
    if report is None:
        return {"losses": losses, "lines": lines}
    return {
        "losses": losses,
        "lines": lines,
        "notices": [n.text for n in report.notices],
        "steps": sorted({int(step) for step in report.steps["step"]}),
        "kinds": [f.kind for f in report.findings],
    }


def plain_losses() -> list[float]:
    model, batch = make("ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [train_step(model, batch(), optimizer) for _ in range(4)]


def every_native_collective() -> dict[str, Any]:
    """One of each public collective, in a step; rows of this rank's group counts and records."""
    from shardtoll.profiler import audit

    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.arange(8.0) + rank
    parts = [torch.empty(8) for _ in range(world)]
    with audit(level="survey") as session, session.step():
        dist.all_reduce(x.clone(), op=dist.ReduceOp.MAX)
        dist.all_gather(parts, x)
        dist.broadcast(x.clone(), src=world - 1)
        dist.reduce(x.clone(), dst=0)
        dist.gather(x, parts if rank == 0 else None, dst=0)
        dist.scatter(torch.empty(8), [torch.ones(8)] * world if rank == 1 else None, src=1)
        dist.all_to_all_single(torch.empty(8), x)
        dist.reduce_scatter(torch.empty(8), [x] * world)
        if rank == 0:
            dist.send(x, dst=1)
        elif rank == 1:
            dist.recv(torch.empty(8), src=0)
        found: list[Any] = [None] * world
        dist.all_gather_object(found, {"rank": rank})
        dist.barrier()
        work = dist.all_reduce(x.clone(), async_op=True)
        work.wait()
    ledger = session.ledger
    return {name: table.to_pylist() for name, table in ledger.tables.items()} if ledger else {}


def sessions_without_model(out: str) -> dict[str, Any]:
    """No model given, whole context one step, then a second session with steps and work between them."""
    from shardtoll.profiler import audit

    model, batch = make("ddp")
    train_step(model, batch())
    with audit(out=out, level="survey") as first:
        train_step(model, batch())
    with audit(model, out=out, level="survey") as second:
        dist.all_reduce(torch.ones(3))
        for _ in range(2):
            with second.step():
                train_step(model, batch())
            dist.all_reduce(torch.ones(5))
    if first.ledger is None or second.ledger is None:
        return {}
    return {
        "first": {name: table.to_pylist() for name, table in first.ledger.tables.items()},
        "second": {name: table.to_pylist() for name, table in second.ledger.tables.items()},
    }


class Implicit(nn.Module):
    """Two sharded operands that do not fit: DTensor gathers the weight, and reduces its gradient."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import Shard, distribute_tensor

        self.weight = nn.Parameter(distribute_tensor(torch.randn(D, HIDDEN), mesh, [Shard(1)]))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


def implicit_redistribution() -> dict[str, Any]:
    """A batch sharded by rows against a weight sharded by columns."""
    from torch.distributed.tensor import Shard, distribute_tensor

    from shardtoll.profiler import audit

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Implicit(mesh)
    x = distribute_tensor(torch.randn(BATCH, D), mesh, [Shard(0)])
    with audit(model, level="survey") as session, session.step():
        model(x).sum().to_local().backward()
    ledger = session.ledger
    return {name: table.to_pylist() for name, table in ledger.tables.items()} if ledger else {}


def replicated_operator() -> dict[str, Any]:
    """A matmul whose DTensor inputs are all Replicate: the same work on every rank."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    from shardtoll.profiler import audit

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    a = distribute_tensor(torch.randn(BATCH, D), mesh, [Replicate()])
    b = distribute_tensor(torch.randn(D, D), mesh, [Replicate()])
    with audit(level="survey") as session, session.step():
        a @ b
    if session.ledger is None:
        return {}
    report = report_of(session, "duplicated-compute")
    assert report is not None
    found = [f for f in report.findings if f.kind == "duplicated-compute"]
    return {
        "replicated_over": [c["replicated_over"] for c in session.ledger.tables["computes"].to_pylist()],
        "evidence": [{item.label: item.value for item in f.evidence} for f in found],
    }
