"""Which device the audited program computes on."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler.live.names import local_of

_cuda: Any = torch.cuda  # torch leaves parts of it untyped
_BLOCKS_NO_HOST: Final = "nccl"
_TOLD_TO_BLOCK: Final = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


def device_of(model: nn.Module | None) -> torch.device:
    """Return the device the model computes on; without one, what the default process group was made for.

    Parameters kept elsewhere, as FSDP's offloaded ones on the CPU, say by their mesh where they are used.
    """
    for parameter in model.parameters() if model is not None else ():
        mesh: Any = getattr(parameter, "device_mesh", None)
        kind = getattr(mesh, "device_type", None)
        own = local_of(parameter).device
        if kind == "cuda" and own.type != "cuda" and torch.cuda.is_available():
            return torch.device("cuda")
        if own.type != "meta":
            return own
    return torch.device("cuda" if _group_is_on_cuda() else "cpu")


def _group_is_on_cuda() -> bool:
    if not torch.cuda.is_available() or not (dist.is_available() and dist.is_initialized()):
        return False
    # Gloo serves CUDA tensors too, and every gloo group says so: then the process tells.
    return _BLOCKS_NO_HOST in cuda_backend() or bool(_cuda.is_initialized())


def cuda_backend() -> str:
    """Return the name of the backend that serves CUDA tensors in the default group; empty where none does.

    `init_process_group()` without a backend makes one for each kind of device, and the group's own name for
    that is `undefined`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    config = str(dist.get_backend_config())
    by_kind = dict(entry.partition(":")[::2] for entry in config.split(",") if ":" in entry)
    return by_kind.get("cuda", "" if by_kind else config)


def host_blocks() -> bool:
    """Whether waiting for a collective of CUDA tensors blocks the host: NCCL's does so only if told to."""
    told = any(os.environ.get(name, "0") != "0" for name in _TOLD_TO_BLOCK)
    return told or _BLOCKS_NO_HOST not in cuda_backend()
