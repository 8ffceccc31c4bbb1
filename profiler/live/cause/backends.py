"""Which backend a process group's collectives run on.

`init_process_group()` without a backend, as `init_device_mesh` calls it, makes one for each kind of device.
The group's name for that is `undefined`; given by device it is the whole list, as `cpu:gloo,cuda:nccl`.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_UNNAMED: Final = "undefined"


def by_device(config: str) -> dict[str, str]:
    """Return device type -> backend of torch's text `cpu:gloo,cuda:nccl`; empty if it names no device."""
    pairs = (entry.partition(":") for entry in config.split(",") if ":" in entry)
    return {device.strip(): backend.strip() for device, _, backend in pairs}


def chosen(name: str, config: str, device_type: str | None) -> str:
    """Return the backend for tensors of `device_type`, by a group's name for its backend and its list.

    If the list does not have the kind of device, it is the name. If there is no name, it is the list's only
    backend, or the one for CPUs.
    """
    backends = by_device(config)
    if device_type in backends:
        return backends[device_type]
    if name != _UNNAMED and not by_device(name):
        return name
    distinct = sorted(set(backends.values()))
    return distinct[0] if len(distinct) == 1 else backends.get("cpu", name)


def named_backend(group: Any = None) -> str:
    """Return torch's own name for a group's backend.

    In a dry run `dist.get_backend` answers what the program asked for.
    """
    return str(c10d.get_backend(group))


def backend_of(group: Any = None, device_type: str | None = None) -> str:
    """Return the backend of this rank's `group`, or of the default one, for tensors of `device_type`."""
    return chosen(named_backend(group), str(dist.get_backend_config(group)), device_type)
