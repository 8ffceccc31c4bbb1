"""Checkpointed blocks under FSDP whose parameters are gathered twice in backward.

Each block is wrapped in FSDP first and then called through a reentrant checkpoint. In backward the
checkpoint runs the block's forward again: FSDP gathers the parameters for it and frees them after it, and a
moment later gathers them once more for the backward itself. Wrapped the other way round, the checkpoint
inside the unit that FSDP shards, the recompute finds the parameters there.

https://github.com/pytorch/pytorch/issues/105635

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.fsdp_ac_regather
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
BLOCKS: Final = 3
DIM: Final = 128
TOKENS: Final = 256
STEPS: Final = 3

checkpointed: Final[Any] = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)
sharded: Final[Any] = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"))


def block() -> nn.Module:
    """Return a perceptron of two matrices without biases: 8 x DIM x DIM parameters."""
    return nn.Sequential(nn.Linear(DIM, 4 * DIM, bias=False), nn.GELU(), nn.Linear(4 * DIM, DIM, bias=False))


def build(fixed: bool) -> Program:
    """Return the model, and three steps of SGD on it."""
    torch.manual_seed(0)
    inner, outer = (checkpointed, sharded) if fixed else (sharded, checkpointed)
    blocks: list[nn.Module] = [outer(inner(block())) for _ in range(BLOCKS)]
    model = sharded(nn.Sequential(*blocks, nn.Linear(DIM, DIM)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def train(session: Session) -> None:
        for _ in range(STEPS):
            # A reentrant checkpoint passes gradients on only where its input wants one.
            batch = torch.randn(TOKENS, DIM, generator=generator).requires_grad_()
            target = torch.randn(TOKENS, DIM, generator=generator)
            with session.step():
                loss = nn.functional.mse_loss(model(batch), target)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="fsdp_ac_regather",
    source="pytorch#105635",
    ranks=RANKS,
    build=build,
    expected=(
        Expected(
            "redundant-collective",
            "FSDP1.unshard",
            bytes=BLOCKS * 8 * DIM * DIM * 4,
            says=("recompute", "FullyShardedDataParallel(checkpoint_wrapper(block)"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
