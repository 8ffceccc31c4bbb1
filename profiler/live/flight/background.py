"""A thread of ours that runs in parallel to the training thread until it is asked to end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

_LEAVING_S: Final = 5.0


class Background(ABC):
    """`start` and `stop` it once; what runs is `_run`, which ends once `_end` is set."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread, after `shardtoll-`."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"shardtoll-{name}", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; once more does no harm."""
        self._end.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_LEAVING_S)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_end` is set."""
