"""ZeroRedundancyOptimizer: DDP whose optimizer state is spread over the ranks (ZeRO-1).

Gradients are reduced as in DDP. Then each rank updates only its own share of the parameters and broadcasts
them: inside `step()` one broadcast a parameter, together as many bytes as the model. None of it overlaps
with anything, so the optimizer pays for the memory it saves. `bucketed` keeps each rank's parameters in one
flat bucket: as many bytes, but only one broadcast a rank.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.zero --variant bucketed
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from shardtoll.samples.strategies import common, ddp


def sharded(model: nn.Module, **choices: Any) -> torch.optim.Optimizer:
    """Return AdamW whose state is spread over the ranks."""
    # Imported here: the package runs torch.jit.script on import, which warns that it is deprecated.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, **choices)


def _trained(options: common.Options, device: torch.device, **choices: Any) -> common.Job:
    model = ddp.wrapped(options, device)
    return common.plain_job(options, device, model, sharded(model, **choices))


def plain(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP with a sharded optimizer as it comes."""
    return _trained(options, device)


def bucketed(options: common.Options, device: torch.device) -> common.Job:
    """Return the same with each rank's parameters in one bucket."""
    return _trained(options, device, parameters_as_bucket_view=True)


VARIANTS: Final[dict[str, common.Build]] = {"plain": plain, "bucketed": bucketed}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
