"""Second attempt: make the gradient whole with a scatter of our own.

The scales are computed from all samples' conditioning on every rank, as before. A custom autograd function
hands each rank its own rows, and its backward gathers the rows' gradients from all ranks: now every rank's
backward sees the gradient of every scale, and `weight.grad` is right everywhere.

It is also computed everywhere. The matmul cond^T [hidden, samples] @ grad_scale [samples, hidden], exactly
2 * hidden * hidden * samples FLOPs, has the same inputs on all n ranks, and so has the forward's matmul: the
work of one device, n times. No gradient shows that; comparing what the ranks computed does.

    torchrun --nproc-per-node 4 -m shardtoll.samples.dit_modulation.scatter
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from shardtoll.profiler import audit, check_gradients
from shardtoll.samples.dit_modulation import common


class TakeOwnRows(torch.autograd.Function):
    """Forward: this rank's rows of what all ranks hold. Backward: all rows' gradients, from all ranks."""

    @staticmethod
    def forward(_: Any, everyones: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows."""
        return everyones[common.own_rows(len(everyones))].clone()

    @staticmethod
    def backward(_: Any, *own_grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of all rows, the same on every rank."""
        own = own_grad[0].contiguous()
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        return torch.cat(rows)


class Scatter(common.Modulation):
    """Scales of all samples, tokens of the own ones, and a scatter that autograd sees between them."""

    def forward(self, cond: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens, scaled: [samples, tokens, hidden]."""
        scale = cond @ self.weight
        own_scale: torch.Tensor = TakeOwnRows.apply(scale)  # type: ignore[no-untyped-call]
        own = own_scale.unsqueeze(1) * tokens[common.own_rows(len(cond))]
        return common.gather_rows(own)


def forward_backward(model: Scatter, batch: common.Batch) -> torch.Tensor:
    """Return the loss, equal on all ranks; leaves the whole gradient in weight.grad of every rank."""
    loss = mse_loss(model(batch.cond, batch.tokens), batch.target)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def main() -> None:
    """Train under an audit, comparing the first step's gradients with one device's."""
    options = common.arguments(__doc__)
    with common.process_group(options) as device:
        model, reference = Scatter(options, device), common.Modulation(options, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        common.warm_up(lambda: forward_backward(model, common.make_batch(options, 0, device)), optimizer)
        batches = [common.make_batch(options, number, device) for number in range(options.steps)]
        with audit(model, out=options.out, level="survey") as session:
            for number, batch in enumerate(batches):
                with session.step():
                    forward_backward(model, batch)
                    if options.checked(number):
                        loss = partial(common.global_loss, batch=batch)
                        common.show(check_gradients(model, reference, loss), number)
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main()
    common.leave()
