"""Incidents as a user runs them: at the default level, and long enough for most steps to be watched."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

import torch

from shardtoll.samples.incidents import common, dit, job
from shardtoll.samples.ranks import process_group

STEPS: Final = 12
"""Of these the default level surveys the first and the third, and more where DDP builds its buckets."""

AS_THEY_ARE: Final = ("ddp_no_sampler", "epoch_order", "slow_loader")
"""Incidents whose length is that of their data."""


def train(name: str, fixed: bool, out: str) -> None:
    """Be one rank of the program; its records go to the run folder `out`."""
    module = import_module(f"shardtoll.samples.incidents.{name}")
    if name not in AS_THEY_ARE:
        for holder in (module, dit, import_module("shardtoll.samples.incidents.clean")):
            if hasattr(holder, "STEPS"):
                holder.STEPS = STEPS
        dit.OPTIONS = replace(dit.OPTIONS, steps=STEPS)  # type: ignore[misc]
    incident = replace(job.incident_of(name), level="schedule")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with process_group("cpu", incident.backend):
        common.run(incident, fixed, Path(out))
        job.part()
