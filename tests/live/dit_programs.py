"""The four attempts of samples/dit_modulation on real ranks, for tests."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import mse_loss

from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.profiler import audit, check_gradients
from shardtoll.samples.dit_modulation import chunk, common, dtensor, scatter
from shardtoll.samples.dit_modulation import partial as by_hand

CPU = torch.device("cpu")
ATTEMPTS = ("chunk", "scatter", "partial", "dtensor")


def closed_form(batch: common.Batch, weight: torch.Tensor) -> torch.Tensor:
    """d/dw mean((s x - y)^2), s = c w: c^T g with g = sum over tokens of 2 (s x - y) x / elements."""
    cond, tokens, target = (part.double() for part in (batch.cond, batch.tokens, batch.target))
    scale = (cond @ weight.double()).unsqueeze(1)
    grad_scale = (2 * (scale * tokens - target) * tokens / tokens.numel()).sum(1)
    return cond.T @ grad_scale


def off(gradient: torch.Tensor, true: torch.Tensor) -> float:
    return float((gradient.double() - true).norm() / true.norm())


def run(attempt: str, hidden: int, tokens: int, samples: int, steps: int = 2) -> dict[str, Any]:
    """Train a few steps under an audit; what rank 0 recorded, and every rank's first gradient."""
    options = common.Options(hidden, tokens, samples, steps)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    model = {
        "chunk": lambda: chunk.Chunk(options, CPU),
        "scatter": lambda: scatter.Scatter(options, CPU),
        "partial": lambda: by_hand.Partial(options, CPU),
        "dtensor": lambda: dtensor.Declared(options, CPU, mesh),
    }[attempt]()
    program = {"chunk": chunk, "scatter": scatter, "partial": by_hand, "dtensor": dtensor}[attempt]
    reference = common.Modulation(options, CPU)
    true = closed_form(common.make_batch(options, 0, CPU), reference.weight.detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result: dict[str, Any] = {"findings": []}
    with audit(model, level="survey") as session:
        for number in range(steps):
            batch = common.make_batch(options, number, CPU)
            placed = dtensor.place(batch, mesh) if attempt == "dtensor" else batch
            with session.step():
                program.forward_backward(model, placed)
                if number == 0:
                    loss = partial(common.global_loss, batch=batch)
                    result["findings"] = [
                        to_plain(finding) for finding in check_gradients(model, reference, loss)
                    ]
                optimizer.step()
                if number == 0:
                    gradient = model.weight.grad
                    whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                    result["off"] = off(whole, true)
                    total = whole.clone()
                    dist.all_reduce(total)
                    result["sum_off"] = off(total, true)
                optimizer.zero_grad()
    if session.ledger is not None:
        for table in ("collectives", "computes"):
            rows = session.ledger.tables[table].to_pylist()
            result[table] = [row for row in rows if row["step"] == steps - 1]
        result["notices"] = [notice["text"] for notice in session.ledger.tables["notices"].to_pylist()]
        result["delivered"] = [to_plain(finding) for finding in session.ledger.findings]
    return result


def all_attempts(hidden: int, tokens: int, samples: int) -> dict[str, Any]:
    return {attempt: run(attempt, hidden, tokens, samples) for attempt in ATTEMPTS}


def cheaper_placements() -> dict[str, Any]:
    """What dtensor.py recommends instead: collectives in the whole step, and the gradient's error."""
    options = common.Options(hidden=16, tokens=8, samples=4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    batch = common.make_batch(options, 0, CPU)
    found: dict[str, Any] = {}
    for name, weight_at, tokens_at in (
        ("channels", Shard(1), Shard(2)),
        ("positions", Replicate(), Shard(1)),
    ):
        model = common.Modulation(options, CPU)
        true = closed_form(batch, model.weight.detach())
        weight = distribute_tensor(model.weight.detach(), mesh, [weight_at])
        model.weight = torch.nn.Parameter(weight)
        cond = distribute_tensor(batch.cond, mesh, [Replicate()])
        tokens, target = (distribute_tensor(t, mesh, [tokens_at]) for t in (batch.tokens, batch.target))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with CommDebugMode() as collectives:
            (mse_loss(model(cond, tokens), target, reduction="sum") / target.numel()).backward()
            optimizer.step()
        counts = {str(op): n for op, n in collectives.get_comm_counts().items() if n}
        assert isinstance(model.weight.grad, DTensor)
        found[name] = {"collectives": counts, "off": off(model.weight.grad.full_tensor(), true)}
    return found


def mean_of_shards() -> dict[str, Any]:
    """mse_loss with reduction="mean" of sharded inputs: what check_gradients says, and what is true."""
    options = common.Options(hidden=16, tokens=8, samples=4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    batch = common.make_batch(options, 0, CPU)
    model, reference = dtensor.Declared(options, CPU, mesh), common.Modulation(options, CPU)
    true = closed_form(batch, reference.weight.detach())
    placed = dtensor.place(batch, mesh)
    common.global_loss(model, placed).backward()
    findings = check_gradients(model, reference, partial(common.global_loss, batch=batch))
    assert isinstance(model.weight.grad, DTensor)
    whole = model.weight.grad.full_tensor().double()
    return {
        "factor": float((whole * true).sum() / true.square().sum()),
        "findings": [to_plain(finding) for finding in findings],
    }
