"""torch.compile with tensor parallelism and with FSDP2: what the bill can still say of a compiled block.

Every block is compiled by itself, as is usual: all blocks share one graph, what lies between stays eager. The
collectives, their order and their bytes are those of the eager program, in both variants:

    tensor   the collectives of `tensor_parallel --variant prepared` are inside the graphs
    fsdp2    each block's all_gathers and reduce_scatter stay outside, in hooks that run eagerly

A compiled graph is left compiled while it is audited: nothing is compiled again, no module inside is called.
That has a price. At run time torch (2.13) no longer knows which module, line or parallel style a collective
inside a graph was traced from, nor whether DTensor inserted it unasked. Such a record names the compiled
module, the line that begins its forward, and `torch.compile` as the cause; for more, audit a few steps
without compiling. FSDP2's records lose nothing.

The backend is inductor where there is something to compile with (a GPU or a C++ compiler), else `aot_eager`.

    torchrun --nproc-per-node 2 -m shardtoll.samples.strategies.compiled --variant fsdp2
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.tensor_parallel import shard_prepared
from shardtoll.samples.strategies.transformer import Transformer, loss_of


def backend(device: torch.device) -> str:
    """Return inductor where it can compile for the device, else the backend that only traces."""
    compilers = (os.environ.get("CXX", "g++"), "g++", "clang++")
    return "inductor" if device.type == "cuda" or any(map(shutil.which, compilers)) else "aot_eager"


def shard_data(model: Transformer, mesh: DeviceMesh) -> None:
    """Have FSDP2 shard each block, and the rest."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def compiled(dim: str, *, with_backend: str | None = None) -> common.Build:
    """Return what builds the job of a variant: spread over `tp` or `dp`, then compiled block by block."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=(dim,))
        model = options.model(device)
        (shard_prepared if dim == "tp" else shard_data)(model, mesh)
        for block in model.blocks.values():
            block.compile(backend=with_backend or backend(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device, rank=0 if dim == "tp" else mesh.get_local_rank())
            loss = loss_of(model(batch.tokens), batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return common.Job(model, step)

    return build


VARIANTS: Final[Mapping[str, common.Build]] = {"tensor": compiled("tp"), "fsdp2": compiled("dp")}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
