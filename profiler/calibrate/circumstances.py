"""When, where and on what a calibration measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def facts_of(hosts: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Return the facts about this job, for the file that is written."""
    names = list(dict.fromkeys(hosts))
    per_host = {hosts.count(name) for name in names}
    facts: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "hosts": names,
        "world_size": len(hosts),
        "ranks_per_node": per_host.pop() if len(per_host) == 1 else None,
        "backend": dist.get_backend(),
        "torch": torch.__version__,
        "device": "cpu",
        "library_version": None,
    }
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        facts["library_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return facts


def provenance(facts: dict[str, Any], samples: int) -> str:
    """Return one sentence of when, how much and where, for reports."""
    hosts = facts["hosts"]
    where = f"this machine ({hosts[0]})" if len(hosts) == 1 else f"{len(hosts)} hosts ({hosts[0]}, ...)"
    library = facts["backend"] + (f" {facts['library_version']}" if facts["library_version"] else "")
    return (
        f"measured on {where}, {facts['when']}: {samples} timed collectives between "
        f"{facts['world_size']} {library} ranks"
    )
