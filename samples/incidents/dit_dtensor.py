"""DTensor does it, and communicates four times where no line of the program says so.

Declared are the conditioning by samples, the weight by columns and the tokens by position. Each sounds
reasonable; together no operator's inputs lie as it needs them. With S samples, H channels and 4 bytes a
float, in every step, whatever the number of ranks:

    mm, `cond @ weight`                cond        Shard(0)->Replicate   all_gather      4 S H bytes
    mul, `scale.unsqueeze(1) * ...`    scale       Shard(2)->Replicate   all_gather      4 S H
    mm, backward of the first line     scale.grad  Partial->Shard(0)     reduce_scatter  4 S H
    add_, in optimizer.step()          weight.grad Partial->Shard(1)     reduce_scatter  4 H H

The mended twin declares one axis for everything, the channels: weight Shard(1), cond Replicate(),
tokens and target Shard(2). Every rank computes its own channels from beginning to end, and nothing
communicates.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.dit_dtensor
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from shardtoll.samples.dit_modulation import common, dtensor
from shardtoll.samples.incidents import dit
from shardtoll.samples.incidents.common import Expected, Incident, Program, Proven, main

SCALE_BYTES = dit.FLOAT * dit.SAMPLES * dit.HIDDEN
WEIGHT_BYTES = dit.FLOAT * dit.HIDDEN * dit.HIDDEN


def by_channels(batch: common.Batch, mesh: DeviceMesh) -> common.Batch:
    """Return the batch with the conditioning whole on every rank and the tokens cut along their channels."""

    def own(whole: torch.Tensor) -> torch.Tensor:
        part = whole.chunk(mesh.size(), dim=2)[mesh.get_local_rank()].contiguous()
        return DTensor.from_local(part, mesh, [Shard(2)])

    cond = DTensor.from_local(batch.cond, mesh, [Replicate()])
    return common.Batch(cond, own(batch.tokens), own(batch.target))


def build(fixed: bool) -> Program:
    """Return the program; mended, everything is cut along one axis."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    model = dtensor.Declared(dit.OPTIONS, dit.CPU, mesh)
    place = by_channels if fixed else dtensor.place
    return dit.program(model, dtensor.forward_backward, partial(place, mesh=mesh))


INCIDENT = Incident(
    name="dit_dtensor",
    source=dit.STORY,
    ranks=dit.RANKS,
    build=build,
    expected=tuple(
        Expected("implicit-redistribute", place, bytes=moved, says=(path, collective, line))
        for place, moved, path, collective, line in (
            ("aten.mm.default", SCALE_BYTES, "(Shard(0)) -> (Replicate())", "all_gather", "dtensor.py"),
            ("aten.mul.Tensor", SCALE_BYTES, "(Shard(2)) -> (Replicate())", "all_gather", "dtensor.py"),
            ("aten.mm.default", SCALE_BYTES, "(Partial(sum)) -> (Shard(0))", "reduce_scatter", "dtensor.py"),
            ("aten.add_.Tensor", WEIGHT_BYTES, "(Partial(sum)) -> (Shard(1))", "reduce_scatter", "dit.py"),
        )
    ),
    proven=(
        Proven(
            "redundant-collective",
            "dtensor.py",
            "this toy makes the whole batch on every rank and cuts its own rows from it: what the gather "
            "brings was there",
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
