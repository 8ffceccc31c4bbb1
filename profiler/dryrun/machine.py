"""The GPU that a program is told it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """What torch.cuda answers of a GPU."""

    key: str
    """As `h100-sxm`."""
    name: str
    """As its driver says: `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
