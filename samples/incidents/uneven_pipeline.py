"""A pipeline of four stages of which one takes four times as long as the others.

A pipeline is as fast as its slowest stage: while stage 2 works, the others wait, and the bubble grows far
beyond the one that the schedule needs, a share of (p - 1) / (m + p - 1) of the step with p stages and m
micro-batches. Layers were counted, not timed. It is told in the article on mistakes in distributed training
that this project started from.

The work is a sleep, so that ranks that share cores do not slow each other: bars show it as idle time.

The bill has to name the slow stage, and to hold what ranks wait besides against the schedule's ideal bubble.
The mended twin has stages of equal length.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.uneven_pipeline
"""

from __future__ import annotations

import time
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

STAGES: Final = 4
SLOW: Final = 2
"""The stage that takes longer."""
BATCHES: Final = 4
WIDTH: Final = 32
FORWARD_S: Final = 0.05
SLOW_FORWARD_S: Final = 0.2
EVEN_FORWARD_S: Final = ((STAGES - 1) * FORWARD_S + SLOW_FORWARD_S) / STAGES
"""What a stage takes if the same work is divided evenly."""
STEPS: Final = 3


class Stage(nn.Module):
    """A part of the model whose forward takes a known time."""

    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._forward_s = forward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stage's output."""
        time.sleep(self._forward_s)
        y: torch.Tensor = self.linear(x)
        return y


def build(fixed: bool, mended_s: float = FORWARD_S) -> Program:
    """Return the program; mended, all stages take the same time."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = Stage(mended_s if fixed else SLOW_FORWARD_S if rank == SLOW else FORWARD_S)
    stage = PipelineStage(model, rank, STAGES, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        batch = torch.randn(BATCHES, WIDTH)
        if rank == 0:
            schedule.step(batch)
        elif rank == STAGES - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                step()

    # In its first step a schedule exchanges shapes.
    step()
    return Program(model, train)


_EXCESS_S: Final = BATCHES * (SLOW_FORWARD_S - FORWARD_S)
"""What the slow stage takes longer than another, in a step."""
_MEAN_EXCESS_S: Final = _EXCESS_S * (STAGES - 1) / STAGES
_EVEN_BUBBLE_S: Final = (STAGES - 1) * EVEN_FORWARD_S
"""What stages of the mean length wait in forward: waiting for the slow one is no bubble, but imbalance."""

INCIDENT = Incident(
    name="uneven_pipeline",
    source="the article on mistakes in distributed training",
    ranks=STAGES,
    build=build,
    expected=(
        Expected(
            "pipeline-imbalance",
            place="uneven_pipeline.py",
            toll_ns=(round(0.8 * _MEAN_EXCESS_S * 1e9), round(3 * _MEAN_EXCESS_S * 1e9)),
            says=("stage 2 of 0-3",),
        ),
        Expected(
            "pipeline-bubble",
            place="uneven_pipeline.py",
            toll_ns=(round(0.8 * _EVEN_BUBBLE_S * 1e9), round(5 * _EXCESS_S * 1e9)),
            says=("4 stages and 4 micro-batches",),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
