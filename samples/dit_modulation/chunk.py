"""First attempt: chunk the tokens by hand.

Every rank takes the tokens of its own samples, scales them, and the ranks exchange the results. The loss goes
down, all ranks have the same loss, nothing fails. But the scales are computed from a weight that every rank
holds, and each rank's backward only reaches its own samples' part of it. `weight.grad` on a rank is a part of
the gradient, nobody adds the parts up, and from the first optimizer step on the ranks train different models.

The sum of `weight.grad` over the ranks is the gradient that one device computes: the missing all_reduce.

    torchrun --nproc-per-node 4 -m shardtoll.samples.dit_modulation.chunk
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import mse_loss

from shardtoll.profiler import audit, check_gradients
from shardtoll.samples.dit_modulation import common


class Chunk(common.Modulation):
    """Scales of all samples, tokens of the own ones."""

    def forward(self, cond: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens, scaled: [samples, tokens, hidden]."""
        scale = cond @ self.weight
        mine = common.own_rows(len(cond))
        own = scale[mine].unsqueeze(1) * tokens[mine]
        return common.gather_rows(own)


def forward_backward(model: Chunk, batch: common.Batch) -> torch.Tensor:
    """Return the loss, equal on all ranks; leaves in weight.grad only this rank's part."""
    loss = mse_loss(model(batch.cond, batch.tokens), batch.target)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def main() -> None:
    """Train under an audit, comparing the first step's gradients with one device's."""
    options = common.arguments(__doc__)
    with common.process_group(options) as device:
        model, reference = Chunk(options, device), common.Modulation(options, device)
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
