"""What one forked process does for the scoreboard: tell of an incident, or be a rank of it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from shardtoll.samples.incidents import common
from shardtoll.samples.ranks import process_group

_FAREWELL_S: Final = 10.0


def incident_of(name: str) -> common.Incident:
    """Return the incident of that module of this folder."""
    found: common.Incident = import_module(f"shardtoll.samples.incidents.{name}").INCIDENT
    return found


def describe(name: str, out: str) -> None:
    """Write to `out` what has to come of the incident, and the variables that each rank starts with."""
    incident = incident_of(name)
    told = {
        "wanted": asdict(incident.wanted()),
        "environments": [dict(incident.environment(rank)) for rank in range(incident.ranks)],
    }
    Path(out).write_text(json.dumps(told), encoding="utf-8")


def train(name: str, fixed: bool, out: str) -> None:
    """Be one rank of the program, as the environment says which; its records go to the run folder `out`."""
    incident = incident_of(name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with process_group("cpu", incident.backend):
        common.run(incident, fixed, Path(out))
        part()


def part() -> None:
    """Leave once nobody needs the store any more that rank 0 serves."""
    if dist.get_backend() == "fake":
        return
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left/{dist.get_rank()}", "1")
    if dist.get_rank() == 0:
        deadline = time.monotonic() + _FAREWELL_S
        names = [f"left/{rank}" for rank in range(dist.get_world_size())]
        while time.monotonic() < deadline and not all(store.check([name]) for name in names):
            time.sleep(0.01)
