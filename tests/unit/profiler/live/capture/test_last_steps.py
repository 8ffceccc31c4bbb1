"""Watched steps still unwritten when the session closes keep their times; unknown ones are not 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit
from shardtoll.profiler.live.capture import keeping
from shardtoll.profiler.live.times.spans import SpanRecorder

STEPS = 20


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keeping, "FLUSH_NS", 10**15)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained() -> Any:
    """Train under DDP and return the ledger."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    with audit(model) as session:
        for _ in range(STEPS):
            with session.step():
                model(torch.randn(8, 64)).square().mean().backward()
    return session.ledger


def watched(ledger: Any, table: str) -> Any:
    steps = ledger.frame("steps")
    rows = ledger.frame(table)
    return rows[rows["step"].isin(steps.loc[steps["level"] == "watch", "step"])]


def test_closing_takes_the_times_of_the_last_watched_steps() -> None:
    ledger = trained()
    assert list(ledger.frame("notices")["kind"]) == []
    rows = watched(ledger, "collectives")
    assert rows["step"].max() == STEPS - 1
    assert rows["step"].nunique() >= STEPS // 2
    assert rows[["start_ns", "duration_ns", "exposed_ns"]].notna().to_numpy().all()


def test_without_the_profiler_what_cpp_waited_for_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpanRecorder, "start", lambda *_, **__: False)
    ledger = trained()
    assert set(ledger.frame("notices")["kind"]) == {"times-unknown"}
    rows = watched(ledger, "collectives")
    assert len(rows)
    assert rows["exposed_ns"].isna().all()
    assert (watched(ledger, "steps")["exposed_comm_ns"] == 0).all()
