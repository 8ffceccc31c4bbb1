"""When the training thread stands still for its next batch.

A DataLoader is iterated by C code of the interpreter, mostly between two steps, so no operator and no step
shows it. While a session is open the iterators' `__next__` and the loader's `__iter__`, which starts worker
processes, are replaced. The replacements note when they were entered and left. The originals are put back on
exit. Only fetches of the training thread count, the outermost of loaders within loaders. A fetch that ends in
an exception, as the last of an epoch does, took its time but brought no batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeAlias

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import dataloader as torchs

from shardtoll.profiler.live.times.patches import Patches, patched

STARTS: Final = "DataLoader.__iter__"
FETCHES: Final = "DataLoader.__next__"

Loaded: TypeAlias = tuple[Any, Any]
"""The loader's iterator, and the batch that it gave."""

NoteFetch: TypeAlias = Callable[[int, int, str, "Loaded | None", FrameType], None]
"""Its arguments: when the fetch began and ended (monotonic ns), its name, the batch that came of it, and who
asked for it."""


class Loading:
    """Makes the calls of loaders on the thread that it is made on, and passes them on."""

    def __init__(self, now_ns: Callable[[], int], note: NoteFetch, is_recording: Callable[[], bool]) -> None:
        self._now_ns = now_ns
        self._note = note
        self._is_recording = is_recording
        self._thread = get_ident()
        self._inside = False

    @property
    def is_fetching(self) -> bool:
        """Whether the training thread is inside a fetch now: what datasets and transforms do."""
        return self._inside

    def patch(self) -> Callable[[], None]:
        """Have fetches noted; returns what undoes that."""

        def patch(patches: Patches) -> None:
            patches.around(DataLoader, "__iter__", lambda original: self._around(original, STARTS))
            iterator = getattr(torchs, "_BaseDataLoaderIter", None)
            patches.around(iterator, "__next__", lambda original: self._around(original, FETCHES))

        return patched(patch)

    def _around(self, original: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
        def fetch(loader: Any) -> Any:
            # A worker forked from the training thread believes itself to be that thread.
            if self._inside or get_ident() != self._thread or get_worker_info() is not None:
                return original(loader)
            if not self._is_recording():
                return original(loader)
            self._inside = True
            came: Loaded | None = None
            begun_ns = self._now_ns()
            try:
                result = original(loader)
                came = (loader, result) if name == FETCHES else None
                return result
            finally:
                self._inside = False
                self._note(begun_ns, self._now_ns(), name, came, sys._getframe(1))

        return fetch
