"""Fourth attempt: let DTensor do it.

Declare where the tensors lie and write the three lines as on one device. Each declaration sounds reasonable:
the conditioning by samples (data parallelism), the weight by columns (as Megatron does), the tokens of every
sample spread over the ranks (sequence parallelism). The gradient is right, and no line of this program
communicates. DTensor does, wherever an operator's inputs do not lie as the operator needs them. With S
samples, H hidden and 4 bytes a float, in every step, whatever the number of ranks:

    operator                           tensor       placements           collective      message bytes
    mm, `cond @ self.weight`           cond         Shard(0)->Replicate  all_gather      4 S H
    mul, `scale.unsqueeze(1) * ...`    scale        Shard(2)->Replicate  all_gather      4 S H
    mm, backward of the first line     scale.grad   Partial->Shard(0)    reduce_scatter  4 S H
    add_, in optimizer.step()          weight.grad  Partial->Shard(1)    reduce_scatter  4 H H

The matmul cannot pair rows of cond with columns of weight, so cond is gathered. The scale then lies by
columns, and tokens that lie by position need all of it, so it is gathered. Backward runs the same way back:
every rank has seen some positions only, which makes the scale's gradient Partial, and the weight's with it.

What to write instead: one axis for everything. The channels never mix after the matmul, so with

    weight Shard(1), cond Replicate(), tokens Shard(2), target Shard(2)

every rank computes its own channels from beginning to end: no collective in forward, backward or optimizer,
and nothing done twice. (Where tokens must lie by position, weight Replicate() and cond Replicate() leave only
the reduction of weight.grad, 4 H H bytes.)

    torchrun --nproc-per-node 4 -m shardtoll.samples.dit_modulation.dtensor
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import mse_loss

from shardtoll.profiler import audit, check_gradients
from shardtoll.samples.dit_modulation import common


class Declared(common.Modulation):
    """The module of one device, its weight's columns spread over the ranks."""

    def __init__(self, options: common.Options, device: torch.device, mesh: DeviceMesh) -> None:
        super().__init__(options, device)
        own = self.weight.detach().chunk(mesh.size(), dim=1)[mesh.get_local_rank()].contiguous()
        self.weight = nn.Parameter(DTensor.from_local(own, mesh, [Shard(1)]))

    def forward(self, cond: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens, scaled: [samples, tokens, hidden]; three lines with collectives inside."""
        # Shard(0) @ Shard(1): DTensor gathers cond, 4 S H bytes. In backward the same matmul's other half
        # reduces and scatters the gradient of scale, 4 S H bytes.
        scale = cond @ self.weight
        # Shard(2) * Shard(1): DTensor gathers the scale, 4 S H bytes.
        return scale.unsqueeze(1) * tokens


def place(batch: common.Batch, mesh: DeviceMesh) -> common.Batch:
    """Return the batch as DTensors: every rank cuts its part out of the batch that all of them made."""

    def own_tokens(whole: torch.Tensor) -> torch.Tensor:
        part = whole.chunk(mesh.size(), dim=1)[mesh.get_local_rank()].contiguous()
        return DTensor.from_local(part, mesh, [Shard(1)])

    cond = DTensor.from_local(batch.cond[common.own_rows(len(batch.cond))], mesh, [Shard(0)])
    return common.Batch(cond, own_tokens(batch.tokens), own_tokens(batch.target))


def forward_backward(model: Declared, batch: common.Batch) -> torch.Tensor:
    """Return the loss, a partial sum on each rank; leaves weight.grad as a Partial DTensor."""
    scaled = model(batch.cond, batch.tokens)
    # A sum, not a mean: torch 2.13 divides the gradient of a sharded mse_loss by the local number of
    # elements, which makes it n times too large (check_gradients says so).
    loss = mse_loss(scaled, batch.target, reduction="sum") / batch.target.numel()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def main() -> None:
    """Train under an audit, comparing the first step's gradients with one device's."""
    options = common.arguments(__doc__)
    with common.process_group(options) as device:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("ranks",))
        model, reference = Declared(options, device, mesh), common.Modulation(options, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        common.warm_up(
            lambda: forward_backward(model, place(common.make_batch(options, 0, device), mesh)), optimizer
        )
        batches = [common.make_batch(options, number, device) for number in range(options.steps)]
        with audit(model, out=options.out, level="survey") as session:
            for number, batch in enumerate(batches):
                placed = place(batch, mesh)
                with session.step():
                    forward_backward(model, placed)
                    if options.checked(number):
                        loss = partial(common.global_loss, batch=batch)
                        common.show(check_gradients(model, reference, loss), number)
                    # Partial into Shard(1): DTensor reduces and scatters the gradient here, 4 H H bytes.
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main()
    common.leave()
