"""Tensor parallelism across nodes: the mesh's dimensions stand in the wrong order.

`init_device_mesh` gives neighbouring ranks to its last dimension. Named ("tp", "dp") the ranks of `tp` are as
far apart as they can be: every block's all_reduces, which nothing hides, go over the network, and the
gradients' one reduction a step has the fast links for itself. Jobs with the mesh laid out so ran several
times slower than one node alone (DeepSpeed#5770, nccl#318).

Two nodes of two ranks are played on one machine, by the variables that torchrun sets on each. To run it
by hand, start two agents:

    A="--nnodes 2 --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29555"
    M="-m shardtoll.samples.incidents.tp_across_nodes"
    torchrun $A --node-rank 1 $M & torchrun $A --node-rank 0 $M

See https://github.com/microsoft/DeepSpeed/issues/5770 and https://github.com/NVIDIA/nccl/issues/318.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardtoll.profiler import Session
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

NODE_RANKS = 2
DIM = 64
LAYERS = 2
ROWS = 256
STEPS = 2
ACTIVATION_BYTES = 4 * ROWS * DIM
ALL_REDUCES = 2 * LAYERS
"""Along `tp`: one in forward and one in backward for each layer."""


def build(fixed: bool) -> Program:
    """Return the program; mended, `tp` is the innermost dimension of the mesh."""
    torch.manual_seed(0)
    names = ("dp", "tp") if fixed else ("tp", "dp")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    model = nn.Sequential()
    for _ in range(LAYERS):
        layer = nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.ReLU(), nn.Linear(DIM, DIM, bias=False))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model.append(parallelize_module(layer, mesh["tp"], plan))
    return Program(model, partial(train, model, mesh))


def train(model: nn.Module, mesh: DeviceMesh, session: Session) -> None:
    """Train on noise that the ranks of `tp` share."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
    session.expect_steps()
    for number in range(STEPS + 1):
        x = torch.randn(ROWS, DIM, generator=generator, requires_grad=True)
        if number == 0:
            # The first step connects and plans; it is not looked at.
            step(model, optimizer, mesh, x)
            continue
        with session.step():
            step(model, optimizer, mesh, x)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, x: torch.Tensor) -> None:
    """Forward, backward, the mean of the gradients over `dp`, update."""
    model(x).square().mean().backward()
    average(model, mesh)
    optimizer.step()
    optimizer.zero_grad()


def average(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average all gradients over `dp`, in one message."""
    own = [weight.grad.to_local() for weight in model.parameters()]  # type: ignore[union-attr]
    flat = torch.cat([gradient.flatten() for gradient in own])
    dist.all_reduce(flat, dist.ReduceOp.SUM, group=mesh.get_group("dp"))
    flat /= mesh["dp"].size()
    means = torch.split(flat, [gradient.numel() for gradient in own])
    for gradient, mean in zip(own, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def environment(rank: int) -> dict[str, str]:
    """Return what torchrun would set on a node of two ranks."""
    return {
        "LOCAL_WORLD_SIZE": str(NODE_RANKS),
        "LOCAL_RANK": str(rank % NODE_RANKS),
        "GROUP_RANK": str(rank // NODE_RANKS),
    }


INCIDENT = Incident(
    name="tp_across_nodes",
    source="https://github.com/microsoft/DeepSpeed/issues/5770",
    ranks=4,
    build=build,
    expected=(
        Expected(
            "cross-node-traffic",
            "tp",
            bytes=ALL_REDUCES * ACTIVATION_BYTES,
            says=("2 nodes", "projected", 'init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))'),
        ),
    ),
    checks=("gradients", "replicas", "data"),
    fabric="h100x8-ib400",
    environment=environment,
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
