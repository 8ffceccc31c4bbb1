"""Steps that one rank begins late by a known time: the other's wait has to land on the right collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import audit
from shardtoll.samples.strategies import common, ddp, fsdp2, zero
from shardtoll.samples.strategies.transformer import loss_of

SLEEP_S: Final = 0.4
LATE: Final = 1
"""The rank that sleeps."""
CPU: Final = torch.device("cpu")
Step = Callable[[Callable[[], None]], object]
"""One step; it is to call what it is given at the place where the late rank sleeps."""


def _at_start(job: common.Job) -> tuple[nn.Module, Step, int]:
    def step(sleep: Callable[[], None]) -> None:
        sleep()
        job.step(1)

    return job.model, step, 3


def _of(build: common.Build) -> tuple[nn.Module, Step, int]:
    return _at_start(build(common.Options(device="cpu"), CPU))


def _first_static_step() -> tuple[nn.Module, Step, int]:
    """DDP's first step with a static graph issues and waits in one callback at the end of backward."""
    model, step, _ = _of(ddp.static_graph)
    return model, step, 0


def _before_optimizer() -> tuple[nn.Module, Step, int]:
    options = common.Options(device="cpu")
    model = ddp.wrapped(options, CPU)
    optimizer = zero.sharded(model)

    def step(sleep: Callable[[], None]) -> None:
        batch = options.batch(1, CPU)
        loss_of(model(batch.tokens), batch.targets).backward()
        sleep()
        optimizer.step()

    return model, step, 3


def _plain(call: Callable[[], object]) -> tuple[nn.Module, Step, int]:
    def step(sleep: Callable[[], None]) -> None:
        sleep()
        call()

    return nn.Linear(2, 2), step, 1


def _future() -> None:
    work = dist.all_reduce(torch.ones(1024), async_op=True)
    work.get_future().wait()


def _other_future() -> None:
    """A future that is no collective's, with none in flight: its wait is idle time."""
    future: torch.futures.Future[int] = torch.futures.Future()
    import threading

    threading.Timer(SLEEP_S, lambda: future.set_result(1)).start()
    future.wait()


KINDS: Final[dict[str, Callable[[], tuple[nn.Module, Step, int]]]] = {
    "ddp": lambda: _of(ddp.no_buffers),
    "ddp_buffers": lambda: _of(ddp.plain),
    "ddp_static_first": _first_static_step,
    "ddp_power_sgd": lambda: _of(ddp.power_sgd),
    "fsdp2": lambda: _of(fsdp2.reshard_true),
    "zero": _before_optimizer,
    "future": lambda: _plain(_future),
    "object": lambda: _plain(lambda: dist.all_gather_object([None, None], {"a": 1})),
    "barrier": lambda: _plain(dist.barrier),
    "other_future": lambda: _plain(_other_future),
}


def _nothing() -> None:
    pass


def _apart(kind: str) -> Callable[[], None]:
    """Return what has the late rank sleep from when the other is there too.

    From its own arrival, the other's wait is shorter by what a busy machine made that one later.
    """
    store, arrived = dist.distributed_c10d._get_default_store(), f"arrived/{kind}"

    def sleep() -> None:
        if dist.get_rank() == LATE:
            store.wait([arrived])
            time.sleep(SLEEP_S)
        else:
            store.set(arrived, "")

    return sleep


def late_rank() -> dict[str, Any]:
    """Run one audited step of each kind; return rank 0's step and collectives."""
    found: dict[str, Any] = {}
    for kind, make in KINDS.items():
        model, step, warm = make()
        for _ in range(warm):
            step(_nothing)
        dist.barrier()
        sleep = _nothing if kind == "other_future" else _apart(kind)
        with audit(model, level="survey") as session, session.step():
            step(sleep)
        if session.ledger is not None:
            tables = {name: session.ledger.tables[name].to_pylist() for name in ("steps", "collectives")}
            found[kind] = {name: [row for row in rows if row["rank"] == 0] for name, rows in tables.items()}
    return found
