"""What the clean programs share: the small transformer of the strategies, and the step that trains it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Program
from shardtoll.samples.strategies.transformer import Batch, Sizes, Transformer, loss_of, make_batch

SIZES = Sizes()
SEQUENCES = 4
STEPS = 3
CHECKS = ("gradients", "replicas", "data")
CPU = torch.device("cpu")


def transformer() -> Transformer:
    """Return the model, with the same weights on every rank."""
    return Transformer(SIZES)


def batch_of(step: int, data_rank: int) -> Batch:
    """Return the batch of a step; ranks that share a batch have the same `data_rank`."""
    return make_batch(SIZES, SEQUENCES, CPU, seed=step, rank=data_rank)


def program(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_rank: int | None = None,
    before_update: Callable[[], None] = lambda: None,
) -> Program:
    """Return the program of the usual lines: batch, forward, backward, update.

    `data_rank` is by default this rank itself; `before_update` runs between backward and the optimizer.
    """
    own = dist.get_rank() if data_rank is None else data_rank

    def step(number: int) -> None:
        batch = batch_of(number, own)
        optimizer.zero_grad()
        loss_of(model(batch.tokens), batch.targets).backward()  # type: ignore[no-untyped-call]
        before_update()
        optimizer.step()

    return Program(model, partial(_train, step))


def _train(step: Callable[[int], None], session: Session) -> None:
    # The first step connects, allocates and plans: it is not one of those that are looked at.
    session.expect_steps()
    step(0)
    for number in range(1, STEPS + 1):
        with session.step():
            step(number)
