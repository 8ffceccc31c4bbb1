"""Machine of the job: the device it computes on, the ranks that share a node, the host's make and cards.

The last is a hint for choosing a fabric, read from /sys and the environment: nothing is asked of a network.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler.live.cause.backends import by_device
from shardtoll.profiler.live.cause.module_names import local_of

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
        place = local_of(parameter).device
        if kind == "cuda" and place.type != "cuda" and torch.cuda.is_available():
            return torch.device("cuda")
        if place.type != "meta":
            return place
    return torch.device("cuda" if _group_is_on_cuda() else "cpu")


def _group_is_on_cuda() -> bool:
    if not torch.cuda.is_available() or not (dist.is_available() and dist.is_initialized()):
        return False
    # Gloo serves CUDA tensors too, and every gloo group says so: then the process decides.
    return _BLOCKS_NO_HOST in cuda_backend() or bool(_cuda.is_initialized())


def cuda_backend() -> str:
    """Return the name of the backend that serves CUDA tensors in the default group; empty if none does.

    `init_process_group()` without a backend makes one for each kind of device, and the group's own name for
    that is `undefined`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    config = str(dist.get_backend_config())
    by_kind = by_device(config)
    return by_kind.get("cuda", "" if by_kind else config)


def host_blocks() -> bool:
    """Whether waiting for a collective of CUDA tensors blocks the host: NCCL's does so only on request."""
    asked = any(os.environ.get(name, "0") != "0" for name in _TOLD_TO_BLOCK)
    return asked or _BLOCKS_NO_HOST not in cuda_backend()


_SYS: Final = Path("/sys")
_AMAZON: Final = "0x1d0f"
_VARIABLES: Final = ("NCCL_NET", "FI_PROVIDER", "NCCL_IB_DISABLE")
"""A launcher's variables about the network; a name of a plugin as `FasTrak` identifies the cloud."""
_MOST_CARDS: Final = 256
_MOST_TEXT: Final = 200


def machine_hint(root: Path = _SYS, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return words as `p5.48xlarge; 32x efa; NCCL_NET=AWS Libfabric`; None if there are none."""
    said = [_text(root / "class/dmi/id/product_name"), _cards(root / "class")]
    said += [f"{name}={environment[name][:40]}" for name in _VARIABLES if environment.get(name)]
    return "; ".join(part for part in said if part)[:_MOST_TEXT] or None


@cache
def this_machine() -> str | None:
    """Return the hint of this host, read once."""
    try:
        return machine_hint()
    except OSError:
        return None


def usable_cores() -> tuple[int | None, tuple[int, ...]]:
    """Return how many CPU cores this process may run on, and which; None and none if not known."""
    if hasattr(os, "sched_getaffinity"):
        cores = tuple(sorted(os.sched_getaffinity(0)))
        return len(cores), cores
    return os.cpu_count(), ()


@cache
def nccl_version(backend: str | None) -> str | None:
    """Return the version of NCCL (or RCCL) that torch was built with, if the job uses it."""
    if backend is None or "nccl" not in backend or not torch.cuda.is_available():
        return None
    try:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else None


def _cards(root: Path) -> str:
    """Return the active network cards, as `8x infiniband 400 Gb/s`: those that are fastest together."""
    slingshot = len(_listed(root / "cxi"))
    if slingshot:
        return f"{slingshot}x slingshot"
    kinds = Counter(card for card in map(_card, _listed(root / "infiniband")) if card is not None)
    if not kinds:
        return ""
    (kind, gbit), number = max(kinds.items(), key=lambda item: item[1] * max(item[0][1], 1))
    return f"{number}x {kind} {gbit} Gb/s" if gbit else f"{number}x {kind}"


def _card(card: Path) -> tuple[str, int] | None:
    """Return the kind and the Gb/s of a card, 0 if it does not say; None if its port is down."""
    port = card / "ports/1"
    state = _text(port / "state")
    if state and "ACTIVE" not in state:
        return None
    if _text(card / "device/vendor") == _AMAZON:
        return "efa", 0
    kind = "roce" if _text(port / "link_layer") == "Ethernet" else "infiniband"
    rate = re.match(r"\d+", _text(port / "rate"))
    return kind, int(rate[0]) if rate else 0


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MOST_CARDS]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:80]
    except OSError:
        return ""


GROUP = ("GROUP_RANK", "NODE_RANK")
"""The node's number, by torchrun and by Lightning's and Ray's launchers; the first that is set counts."""


def ranks_per_node(rank: int, world_size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return LOCAL_WORLD_SIZE if it is true of every rank that consecutive ones share a node; else None.

    Rank, local rank and node of this rank have to fit: a variable may be left over from another job. One
    machine that runs several agents of torchrun has several nodes by this. Their host name is one, and the
    requested layout is what counts.
    """
    size = _whole(environment.get("LOCAL_WORLD_SIZE"))
    node = next((_whole(environment[name]) for name in GROUP if name in environment), None)
    if not size or node is None or world_size % size:
        return None
    local = _whole(environment.get("LOCAL_RANK", str(rank % size)))
    return size if (node, local) == divmod(rank, size) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def of_this_process(rank: int, world_size: int, device: torch.device) -> dict[str, Any]:
    """Return the fields of a `Run` that say where this process runs and that stay as they are."""
    return {
        "device": _device_name(device),
        "torch": str(torch.__version__),
        "hosts": (socket.gethostname(),),
        "ranks_per_host": ranks_per_node(rank, world_size),
        "machine": this_machine(),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type
