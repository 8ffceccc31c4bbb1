"""Gradient accumulation under DDP without `no_sync()`.

Four micro-batches make one optimizer step, and DistributedDataParallel reduces its buckets in each of their
backwards. The gradients are right all the same, as sums of averages are averages of sums: nothing but the
network tells.

Notes of torch.nn.parallel.DistributedDataParallel.no_sync

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.accum_sync_ddp
"""

from __future__ import annotations

import contextlib
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
DIM: Final = 64
TOKENS: Final = 32
MICRO_BATCHES: Final = 4
STEPS: Final = 2


def build(fixed: bool) -> Program:
    """Return a wrapped perceptron, and two steps of four micro-batches each."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.GELU(), nn.Linear(DIM, DIM, bias=False))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())

    def train(session: Session) -> None:
        for _ in range(STEPS):
            with session.step():
                for micro_batch in range(MICRO_BATCHES):
                    batch, target = torch.randn(2, TOKENS, DIM, generator=generator)
                    waits = fixed and micro_batch < MICRO_BATCHES - 1
                    with model.no_sync() if waits else contextlib.nullcontext():
                        loss = nn.functional.mse_loss(model(batch), target) / MICRO_BATCHES
                        loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="accum_sync_ddp",
    source="notes of DistributedDataParallel.no_sync",
    ranks=RANKS,
    build=build,
    expected=(
        Expected(
            "sync-every-microbatch",
            "DistributedDataParallel.reducer",
            bytes=(MICRO_BATCHES - 1) * 2 * DIM * DIM * 4,
            says=("3 of 4", "model.no_sync()"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
