"""Small things that stand in for torch's: functions that do nothing, contexts that pass."""

from __future__ import annotations

import os
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
    """Statistics of the allocator: an unknown one counts as none."""

    def __missing__(self, key: str) -> int:
        return 0


_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""In the order in which torch reads them (c10/core/AllocatorConfig.cpp)."""


class Memory:
    """Answers of torch.cuda's memory functions, set by the code that records storages."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.live_bytes: Callable[[], int] = lambda: 0
        self.peak_bytes: Callable[[], int] = lambda: 0
        self._settings: str | None = None

    def set_up(self, env: str) -> None:
        """Take the allocator's settings from a call of the program; torch names them `env`."""
        self._settings = env

    @property
    def settings(self) -> str | None:
        """How the program sets torch's allocator: by a call, or by the environment."""
        told = (os.environ.get(name) for name in _SETTINGS)
        return self._settings or next((text for text in told if text), None)
