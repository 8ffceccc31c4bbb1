"""Third attempt: slice the conditioning first, add the gradient up by hand.

Each rank projects only its own samples' conditioning, so no matmul is done twice: those of forward
and backward take 2 * hidden * hidden * samples / n FLOPs a rank. `weight.grad` is then a part again, as in
the first attempt, but this time the program adds the parts up: one all_reduce of hidden * hidden elements
after backward.

That is the right program. What remains to ask is what its all_reduce costs, for nothing overlaps with it.

    torchrun --nproc-per-node 4 -m shardtoll.samples.dit_modulation.partial
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from shardtoll.profiler import audit, check_gradients
from shardtoll.samples.dit_modulation import common


class Partial(common.Modulation):
    """Scales and tokens of the own samples."""

    def forward(self, cond: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens, scaled: [samples, tokens, hidden]."""
        mine = common.own_rows(len(cond))
        scale = cond[mine] @ self.weight
        own = scale.unsqueeze(1) * tokens[mine]
        return common.gather_rows(own)


def forward_backward(model: Partial, batch: common.Batch) -> torch.Tensor:
    """Return the loss, equal on all ranks; leaves the whole gradient in weight.grad of every rank."""
    loss = mse_loss(model(batch.cond, batch.tokens), batch.target)
    loss.backward()  # type: ignore[no-untyped-call]
    # Every rank's loss is the mean over all tokens already: the parts are summed, not averaged.
    dist.all_reduce(model.weight.grad)
    return loss.detach()


def main() -> None:
    """Train under an audit, comparing the first step's gradients with one device's."""
    options = common.arguments(__doc__)
    with common.process_group(options) as device:
        model, reference = Partial(options, device), common.Modulation(options, device)
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
