"""What the four attempts at one modulation share: sizes, and how any of them is trained for a few steps.

The programs themselves are those of samples/dit_modulation, which tells their story line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from shardtoll.profiler import Session
from shardtoll.samples.dit_modulation import common
from shardtoll.samples.incidents.common import Program

RANKS: Final = 4
SAMPLES: Final = 8
HIDDEN: Final = 128
TOKENS: Final = 32
STEPS: Final = 2
FLOAT: Final = 4
"""Bytes."""
MATMUL: Final = 2 * SAMPLES * HIDDEN * HIDDEN
"""FLOPs of `cond @ weight` for all samples, and of its weight's gradient."""

STORY: Final = '"Why Distributed Training Is Hard", on DTensor and the costs of abstraction'
OPTIONS: Final = common.Options(HIDDEN, TOKENS, SAMPLES, STEPS)
CPU: Final = torch.device("cpu")


def program(
    model: common.Modulation,
    forward_backward: Callable[[Any, common.Batch], torch.Tensor],
    place: Callable[[common.Batch], common.Batch] = lambda batch: batch,
    check: Callable[[common.Batch], object] = lambda _: None,
) -> Program:
    """Return the training of one attempt: `place` lays the batch out, `check` looks at the first gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(number: int) -> common.Batch:
        return common.make_batch(OPTIONS, number, CPU)

    def train(session: Session) -> None:
        session.expect_steps()
        common.warm_up(lambda: forward_backward(model, place(batch(0))), optimizer)
        for number in range(STEPS):
            placed = place(batch(number))
            with session.step():
                forward_backward(model, placed)
                if number == 0:
                    check(batch(number))
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)
