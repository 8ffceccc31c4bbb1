"""Small things that stand in for torch's: functions that do nothing, contexts that pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing, whatever is asked."""


class Passing:
    """Stands for a context that selects a device."""

    def __init__(self, device: Any = None) -> None:
        self.idx = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Counters(dict[str, int]):
    """Statistics of the allocator: what is not known counts as none."""

    def __missing__(self, key: str) -> int:
        return 0


class Memory:
    """What torch.cuda's memory functions answer: set by what records storages."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.live_bytes: Callable[[], int] = lambda: 0
        self.peak_bytes: Callable[[], int] = lambda: 0
