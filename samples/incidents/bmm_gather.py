"""A matmul that needs no communication gathers an operand: sharded on two mesh dims, times a replicated
one.

x [batch, heads, positions, channels] is sharded by samples over `cp0` and by heads over `cp1`; the
weight [heads, channels, out], a matrix a head, is replicated. Each rank has all that its own part of
the result takes. But matmul
folds batch and heads into one dimension before it calls bmm, and a dimension folded of two sharded ones
lies in strides. bmm with a replicated operand does not take that (torch 2.13): DTensor gathers x over
`cp1`, and then both ranks of each pair along `cp1` multiply the same.

The mended twin multiplies what each rank has: it takes the matrices of its own heads out of the replicated
weight, which costs nothing, and says how the product and the gradient lie.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.bmm_gather

See https://github.com/pytorch/pytorch/issues/167106.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

BATCH, HEADS, POSITIONS, CHANNELS, OUT = 4, 8, 32, 64, 16
STEPS = 2
FLOAT = 4

GATHERED_BYTES = BATCH // 2 * HEADS * POSITIONS * CHANNELS * FLOAT
"""What one all_gather of x over `cp1` puts out: all heads of the samples that `cp0` left here."""
MATMUL = 2 * BATCH * HEADS * POSITIONS * CHANNELS * OUT
"""FLOPs of the whole product; as much again is done in vain."""


class PerHead(nn.Module):
    """x @ weight, a matrix for each head."""

    def __init__(self, mesh: DeviceMesh, *, on_shards: bool) -> None:
        super().__init__()
        weight = torch.randn(HEADS, CHANNELS, OUT) / CHANNELS**0.5
        self.weight: DTensor = nn.Parameter(distribute_tensor(weight, mesh, [Replicate(), Replicate()]))  # type: ignore[assignment]
        self.on_shards = on_shards

    def forward(self, x: DTensor) -> torch.Tensor:
        """Return the products: [batch, heads, positions, out]."""
        if not self.on_shards:
            return torch.matmul(x, self.weight)
        mine = self.weight.redistribute(placements=[Replicate(), Shard(0)])
        # The gradient is a sum over the samples of all ranks along cp0.
        own = torch.matmul(x.to_local(), mine.to_local(grad_placements=[Partial(), Shard(0)]))
        return DTensor.from_local(own, x.device_mesh, x.placements)


def build(fixed: bool) -> Program:
    """Return the program; mended, it multiplies the shards."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp0", "cp1"))
    model = PerHead(mesh, on_shards=fixed)
    x, target = (
        distribute_tensor(torch.randn(BATCH, HEADS, POSITIONS, width), mesh, [Shard(0), Shard(1)])
        for width in (CHANNELS, OUT)
    )

    def step() -> None:
        (model(x) - target).square().sum().backward()
        gradient = model.weight.grad
        assert isinstance(gradient, DTensor)
        # Where it is a part on each rank, it is summed: one mesh dim after the other.
        for placements in ([Replicate(), gradient.placements[1]], [Replicate(), Replicate()]):
            gradient = gradient.redistribute(placements=placements)
        with torch.no_grad():
            model.weight.add_(gradient, alpha=-1e-4)
        model.weight.grad = None

    def train(session: Session) -> None:
        session.expect_steps()
        step()
        for _ in range(STEPS):
            with session.step():
                step()

    return Program(model, train)


INCIDENT = Incident(
    name="bmm_gather",
    source="https://github.com/pytorch/pytorch/issues/167106",
    ranks=4,
    build=build,
    expected=(
        Expected(
            "implicit-redistribute",
            "aten.bmm.default",
            bytes=GATHERED_BYTES,
            says=(
                "1 all_gather per step on mesh dim cp1",
                f"argument 0 (self), [{BATCH * HEADS}, {POSITIONS}, {CHANNELS}]",
                "_StridedShard",
                "bmm_gather.py",
                "to_local",
            ),
        ),
        Expected(
            "duplicated-compute",
            "bmm_gather.py",
            flops=MATMUL,
            says=("aten.bmm.default", "the same work 2 times in forward", "ranks 0-1; ranks 2-3 (cp1)"),
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
