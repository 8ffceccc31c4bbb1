"""When the training thread is blocked on a collective it was handed.

`Work.wait` of native collectives is no operator, so no dispatch mode sees it, and neither is the wait for the
future of one. While a session is open the methods are replaced by ones that note when they were entered and
left; they are put back on exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.profiler.live.patches import patched

NoteWait = Callable[[Any, int, int], None]
"""Called with what was waited for and the monotonic ns at which the wait began and ended."""


def patch_work_wait(now_ns: Callable[[], int], note: NoteWait) -> Callable[[], None]:
    """Have every `Work.wait` noted; returns what puts the original back."""
    return _patch(getattr(dist, "Work", None) if dist.is_available() else None, now_ns, note)


def patch_future_wait(now_ns: Callable[[], int], note: NoteWait) -> Callable[[], None]:
    """Have every wait for a future noted, `work.get_future().wait()` too; returns what undoes that."""
    return _patch(getattr(torch._C, "Future", None), now_ns, note)


def _patch(owner: Any, now_ns: Callable[[], int], note: NoteWait) -> Callable[[], None]:
    def noted(original: Any) -> Callable[..., Any]:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun_ns = now_ns()
            try:
                return original(self, *args, **kwargs)
            finally:
                note(self, begun_ns, now_ns())

        return wait

    return patched(lambda patches: patches.around(owner, "wait", noted))


class OnThisThread:
    """Passes waits on only from the thread that it was made on, while there is recording."""

    def __init__(self, note: NoteWait, is_recording: Callable[[], bool]) -> None:
        self._note = note
        self._is_recording = is_recording
        self._ident = threading.get_ident
        self._thread = threading.get_ident()

    def __call__(self, waited_for: Any, begun_ns: int, ended_ns: int) -> None:
        """Pass a wait on; see `NoteWait`."""
        if self._ident() == self._thread and self._is_recording():
            self._note(waited_for, begun_ns, ended_ns)
