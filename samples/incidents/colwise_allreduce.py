"""A column-parallel linear whose input's gradient is reduced twice in backward.

Tokens are sharded. Code of the project's own gathers them before the column-parallel matrix, and in backward
sums their gradients and scatters them, as Megatron's sequence parallelism does. In between,
`DTensor.from_local(x, mesh, [Replicate()])` makes the gathered tokens a DTensor, and its backward, asked for
a replicated gradient, all_reduces first. The scatter then sums what every rank has in full: the network is
used twice, and gradients come out too large by the number of ranks, which the project divides away.

The mended twin says that the gradient stays Partial. If torch's `from_local` cannot be told (2.11), DTensor
gathers the tokens itself: its backward then sums and scatters in one.

https://github.com/pytorch/pytorch/pull/175867

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.colwise_allreduce
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

RANKS: Final = 2
DIM: Final = 32
TOKENS: Final = 64
STEPS: Final = 3

TAKES_GRADIENTS: Final = "grad_placements" in inspect.signature(DTensor.from_local).parameters
"""Whether `DTensor.from_local` can be told how the gradient lies."""


class GatherTokens(torch.autograd.Function):
    """Gathers the ranks' tokens; in backward each rank gets the sum of its own tokens' gradients."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, fixed: bool) -> torch.Tensor:
        """Return all ranks' tokens, [ranks x tokens, dim], of this rank's [tokens, dim]."""
        ctx.fixed = fixed
        whole = tokens.new_empty(tokens.shape[0] * RANKS, tokens.shape[1])
        dist.all_gather_into_tensor(whole, tokens.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of this rank's tokens."""
        (gradient,) = gradients
        part = gradient.new_empty(gradient.shape[0] // RANKS, gradient.shape[1])
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return (part if ctx.fixed else part / RANKS), None


class Model(nn.Module):
    """A linear on each rank's tokens, then a column-parallel one on all tokens."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.before = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        parallelize_module(self, self.mesh, {"up": ColwiseParallel()})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns for all tokens."""
        own = self.before(tokens)
        columns: torch.Tensor = self.up(
            self._by_dtensor(own) if self.fixed and not TAKES_GRADIENTS else self._by_hand(own)
        )
        return columns

    def _by_hand(self, own: torch.Tensor) -> DTensor:
        gather: Any = GatherTokens.apply
        gradients: dict[str, Any] = {"grad_placements": [Partial()]} if self.fixed else {}
        return DTensor.from_local(gather(own, self.fixed), self.mesh, [Replicate()], **gradients)

    def _by_dtensor(self, own: torch.Tensor) -> DTensor:
        return DTensor.from_local(own, self.mesh, [Shard(0)]).redistribute(placements=[Replicate()])


def build(fixed: bool) -> Program:
    """Return the model, and three steps of it."""
    torch.manual_seed(0)
    model = Model(fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def train(session: Session) -> None:
        for _ in range(STEPS):
            tokens = torch.randn(TOKENS // RANKS, DIM, generator=generator)
            with session.step():
                model(tokens).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="colwise_allreduce",
    source="pytorch PR#175867",
    ranks=RANKS,
    build=build,
    expected=(
        Expected(
            "redundant-collective",
            "DTensor.from_local",
            bytes=TOKENS * DIM * 4,
            says=("all_reduce", "backward", "grad_placements=[Partial()]"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
