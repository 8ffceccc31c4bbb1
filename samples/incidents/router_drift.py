"""A router that every rank holds whole, and that no two ranks hold equal after one step.

Mixture of experts under tensor parallelism: each rank has a slice of every expert, and the router, which is
small, is a replicated DTensor. The experts are written with plain tensors, so the scores leave DTensor by
`to_local()`. Forward is right. In backward the gradient that comes back to the scores is a *part* on each
rank, as it came through that rank's slices alone; `to_local()` takes it for what the scores were in
forward: Replicate. So the router's gradient is a part too, says that it is whole, and each rank trains a
router of its own. The loss goes down all the same, a little worse; the checkpoint has rank 0's router.

The cure is one argument: `to_local(grad_placements=[Partial()])`, and DTensor adds the parts up before
softmax's backward needs the whole.

https://github.com/pytorch/torchtitan/issues/1805, https://github.com/pytorch/torchtitan/issues/2387

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.router_drift
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

TOKENS: Final = 32
DIM: Final = 16
HIDDEN: Final = 32
EXPERTS: Final = 4
STEPS: Final = 3


class Router(nn.Module):
    """Scores of the experts for each token; its weight is the same on all ranks."""

    def __init__(self, mesh: DeviceMesh, fixed: bool) -> None:
        super().__init__()
        self.mesh = mesh
        self.fixed = fixed
        self.weight = nn.Parameter(distribute_tensor(torch.randn(DIM, EXPERTS), mesh, [Replicate()]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, experts] for [tokens, dim]."""
        scores = (DTensor.from_local(x, self.mesh, [Replicate()]) @ self.weight).softmax(-1)
        local: Any = scores
        if self.fixed:
            whole: torch.Tensor = local.to_local(grad_placements=[Partial()])
        else:
            whole = local.to_local()
        return whole


class Experts(nn.Module):
    """A router and every expert's slice: each rank makes a part of the sum."""

    def __init__(self, mesh: DeviceMesh, fixed: bool) -> None:
        super().__init__()
        self.mesh = mesh
        self.router = Router(mesh, fixed)
        self.up = nn.Parameter(distribute_tensor(torch.randn(EXPERTS, DIM, HIDDEN) / 4, mesh, [Shard(2)]))
        self.down = nn.Parameter(distribute_tensor(torch.randn(EXPERTS, HIDDEN, DIM) / 6, mesh, [Shard(1)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [tokens, dim] for the same on every rank."""
        scores = self.router(x)
        up: Any = self.up
        down: Any = self.down
        hidden = torch.einsum("td,edh->eth", x, up.to_local()).relu()
        part = torch.einsum("te,eth,ehd->td", scores, hidden, down.to_local())
        summed: Any = DTensor.from_local(part, self.mesh, [Partial()]).redistribute(placements=[Replicate()])
        whole: torch.Tensor = summed.to_local()
        return whole


def build(fixed: bool) -> Program:
    """Return the program; `fixed` has the scores' gradient declared Partial."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Experts(mesh, fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(session: Session) -> None:
        for number in range(STEPS):
            with session.step():
                generator = torch.Generator().manual_seed(number)
                x = torch.randn(TOKENS, DIM, generator=generator)
                loss = (model(x) - x.roll(1, 0)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return Program(model, train)


INCIDENT = Incident(
    name="router_drift",
    source="https://github.com/pytorch/torchtitan/issues/1805, https://github.com/pytorch/torchtitan/issues/2387",
    ranks=2,
    build=build,
    expected=(
        Expected("wrong-gradient", "router.weight", says=("Partial treated as Replicate", "mesh dim tp")),
        Expected("replica-drift", "router.weight", says=("after step 0",)),
    ),
    checks=("gradients", "replicas"),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
