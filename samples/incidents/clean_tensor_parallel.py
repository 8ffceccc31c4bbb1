"""Nothing to find: tensor and sequence parallelism as the tutorial writes it, AdamW.

One line is not in the tutorial: `SequenceParallel` leaves the norms' gradients partial, and the optimizer
would have each reduced again and again (see sp_norm_adamw); here each is reduced once before the update.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.clean_tensor_parallel

See https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from shardtoll.samples.incidents import clean
from shardtoll.samples.incidents.common import Incident, Program, main
from shardtoll.samples.strategies.tensor_parallel import shard_sequence


def build(fixed: bool) -> Program:  # noqa: ARG001 - there is nothing to mend
    """Return the program."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = clean.transformer()
    shard_sequence(model, mesh)
    norms = [weight for name, weight in model.named_parameters() if "norm" in name]

    def reduce_norms() -> None:
        for weight in norms:
            assert isinstance(weight.grad, DTensor)
            weight.grad = weight.grad.redistribute(placements=[Replicate()])

    optimizer = torch.optim.AdamW(model.parameters())
    # All ranks of `tp` share a batch.
    return clean.program(model, optimizer, data_rank=0, before_update=reduce_norms)


INCIDENT = Incident(
    name="clean_tensor_parallel",
    source="https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html",
    ranks=2,
    build=build,
    expected=(),
    checks=clean.CHECKS,
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
