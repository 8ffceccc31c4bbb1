"""What torch says of a collective's time: `redistribute_cost`'s constants, and inductor's NCCL estimator.

Both are asked as on a machine with the sweep's GPUs a node, in torch's own code with torch's own constants.
Neither is in torch's public interface: an answer is None where this torch has it no more, or not yet, and
for what it does not do. Where torch's own callers hand over other bytes than nccl-tests counts (an
all_gather's input), each is given what its formula means.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from shardtoll.analyzers.roofline.evaluate.sweep import Sweep

Peer: TypeAlias = Callable[[Sweep, int], float | None]
"""Sweep and message bytes -> ns; None where it says nothing."""

_GIB: Final = 1024**3
_CAPABILITY: Final = (
    (r"V100", "VOLTA"),
    (r"A100|A10G|A40", "AMPERE"),
    (r"G?H[12]00", "HOPPER"),
    (r"G?B[123]00", "BLACKWELL"),
)
"""GPU in the hardware's name -> inductor's name of its generation."""


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_REDISTRIBUTE: Final = _module("torch.distributed.tensor._collective_utils")
_INDUCTOR: Final = _module("torch._inductor.comm_analysis")


def redistribute_cost(sweep: Sweep, message_bytes: int) -> float | None:
    """Return the time in ns by DTensor's cost model, which divides bytes by 1024^3 and calls that GB.

    A change of the sharded dim is what DTensor has for an all_to_all: an all_gather's time and 1 us.
    """
    topology = _topology(sweep)
    if topology is None or _REDISTRIBUTE is None:
        return None
    asked = "all_gather" if sweep.op == "all_to_all" else sweep.op
    names = {"all_reduce": "allreduce_cost", "all_gather": "allgather_cost"}
    cost = getattr(_REDISTRIBUTE, names.get(asked, f"{asked}_cost"), None)
    if cost is None:
        return None
    time_us = cost(message_bytes / _GIB, topology, 0) + (1.0 if sweep.op == "all_to_all" else 0.0)
    return 1e3 * float(time_us)


def _topology(sweep: Sweep) -> Any:
    """Return torch's own description of a mesh of one dim over the sweep's ranks; None where it fails."""
    built = getattr(getattr(_REDISTRIBUTE, "MeshTopoInfo", None), "build_from_mesh", None)
    resources = getattr(_REDISTRIBUTE, "_mesh_resources", None)
    plain = getattr(built, "__wrapped__", None)
    if plain is None or not hasattr(resources, "num_devices_per_host"):
        return None
    mesh = SimpleNamespace(ndim=1, device_type="cuda", size=lambda _: sweep.ranks)
    per_node = sweep.placement.ranks_per_node
    with patch.object(resources, "num_devices_per_host", lambda _: per_node):
        return plain(mesh)


def inductor(sweep: Sweep, message_bytes: int) -> float | None:
    """Return the time in ns by inductor's estimator, on the sweep's GPU generation and GPUs a node.

    A send is asked between two ranks: its formula divides by the ranks of the group.
    """
    estimate = getattr(_INDUCTOR, "estimate_nccl_collective_runtime_impl", None)
    generation = next((name for gpu, name in _CAPABILITY if re.search(gpu, sweep.hardware)), None)
    types = getattr(_INDUCTOR, "NVIDIA_GPU_TYPE", None)
    names = {"send": "P2P", "recv": "P2P"}
    kind = getattr(getattr(_INDUCTOR, "NCCL_COLL", None), names.get(sweep.op, sweep.op.upper()), None)
    if estimate is None or generation is None or kind is None or not hasattr(types, generation):
        return None
    ranks, per_node = sweep.ranks, sweep.placement.ranks_per_node
    if kind.name == "P2P":
        ranks, per_node = 2, 1 if sweep.nodes > 1 else 2
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: per_node),
        patch.object(_INDUCTOR, "get_gpu_type", lambda: getattr(types, generation)),
        patch.object(_INDUCTOR, "_has_nvlink", lambda: True),
    ):
        time_ms = float(estimate(message_bytes, ranks, kind))
    return 1e6 * time_ms if time_ms > 0 else None


PEERS: Final[dict[str, Peer]] = {"redistribute_cost": redistribute_cost, "inductor": inductor}
