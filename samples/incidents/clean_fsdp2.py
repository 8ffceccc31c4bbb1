"""Nothing to find: FSDP2 as its tutorial writes it, each block sharded by itself and then the root, AdamW.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.clean_fsdp2

See https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtoll.samples.incidents import clean
from shardtoll.samples.incidents.common import Incident, Program, main


def build(fixed: bool) -> Program:  # noqa: ARG001 - there is nothing to mend
    """Return the program."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = clean.transformer()
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return clean.program(model, torch.optim.AdamW(model.parameters()))


INCIDENT = Incident(
    name="clean_fsdp2",
    source="https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html",
    ranks=2,
    build=build,
    expected=(),
    checks=clean.CHECKS,
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
