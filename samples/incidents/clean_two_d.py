"""Nothing to find: FSDP2 across and tensor with sequence parallelism along the rows of a mesh, AdamW.

FSDP2 reduces the norms' partial gradients along `tp` before it scatters them along `dp`, each once.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.clean_two_d

See https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtoll.samples.incidents import clean
from shardtoll.samples.incidents.common import Incident, Program, main
from shardtoll.samples.strategies.tensor_parallel import shard_sequence

SHAPE = (2, 2)


def build(fixed: bool) -> Program:  # noqa: ARG001 - there is nothing to mend
    """Return the program."""
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=("dp", "tp"))
    model = clean.transformer()
    shard_sequence(model, mesh["tp"])
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    # The ranks of a row share a batch.
    return clean.program(model, optimizer, data_rank=mesh.get_local_rank("dp"))


INCIDENT = Incident(
    name="clean_two_d",
    source="https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html",
    ranks=4,
    build=build,
    expected=(),
    checks=clean.CHECKS,
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
