"""The same modulation with one axis for everything, the channels: no rank needs what another has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shardtoll.samples.dit_modulation import common, dtensor
from shardtoll.samples.incidents.dit_dtensor import by_channels

if TYPE_CHECKING:
    from shardtoll.profiler.live.entry.budgeted import CommBudget

BUDGET = Path(__file__).with_name("budget.toml")
CPU = torch.device("cpu")


def test_a_step_sends_nothing(comm_budget: CommBudget) -> None:
    """Passes: weight Shard(1), cond Replicate(), tokens and target Shard(2)."""
    options = common.Options()
    with comm_budget(BUDGET, mesh={"ranks": 4}) as job:
        model = dtensor.Declared(options, CPU, job.mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = by_channels(common.make_batch(options, 0, CPU), job.mesh)
        with job.step():
            dtensor.forward_backward(model, batch)
            optimizer.step()
