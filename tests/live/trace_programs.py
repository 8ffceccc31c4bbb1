"""Traced audits on real ranks, for the tests of trace=True."""

from __future__ import annotations

from typing import Any

import torch

from tests.live.programs import make, train_step

STEPS = 3


def _bits(model: torch.nn.Module) -> list[str]:
    local = [getattr(p.detach(), "_local_tensor", p.detach()) for p in model.parameters()]
    return [tensor.numpy().tobytes().hex() for tensor in local]


def traced(kind: str, out: str | None, *, trace: bool = True, trace_steps: int = 2) -> dict[str, Any]:
    """Three audited steps, the first ones traced: bits of the result, files, and on rank 0 all tables."""
    from shardtoll.profiler import audit

    model, batch = make(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with audit(model, out=out, trace=trace, trace_steps=trace_steps, level="survey") as session:
        folder = session._kept.folder
        for _ in range(STEPS):
            with session.step():
                losses.append(train_step(model, batch(), optimizer).hex())
    found: dict[str, Any] = {
        "bits": [losses, _bits(model), torch.get_rng_state().sum().item()],
        "left": sorted(path.name for path in folder.iterdir()) if folder.exists() else None,
        "profiling": torch._C._autograd._profiler_enabled(),
    }
    if session.ledger is not None:
        found["rows"] = {name: table.to_pylist() for name, table in session.ledger.tables.items()}
    return found
