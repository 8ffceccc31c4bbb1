"""Which thread trains, and when it is blocked on a collective that it was handed.

The thread that opened the session trains, and so do those on which autograd runs its backward.
Autograd runs an accelerator's backward on threads of its own, with the state that the thread had that asked
for it. A mark left in that state distinguishes such a backward from one that a thread of the user's own runs.

`Work.wait` of native collectives is no operator, so no dispatch mode sees it. The same holds for the wait for
its future. While a session is open the methods are replaced by ones that note when they were entered and
left. They are put back on exit.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from threading import get_ident
from types import FrameType
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from shardtoll.profiler.live.times.patches import patched

_KEY: Final = "shardtoll: the thread that trains"


class TrainingThread:
    """Knows the thread that it is made on."""

    def __init__(self) -> None:
        self.ident: Final = get_ident()
        self._mark = object()
        kept: Any = torch._C
        self._marks = all(hasattr(kept, name) for name in ("_is_key_in_tls", "_get_obj_in_tls"))
        self._marks = self._marks and hasattr(kept, "_stash_obj_in_tls")

    def mark(self) -> None:
        """Have backwards known that this thread, the training's, begins from now on."""
        if self._marks:
            _keep(self._mark)

    def unmark(self) -> None:
        """Take the mark back."""
        if self._marks:
            _keep(None)

    def is_here(self) -> bool:
        """Whether the code that asks runs on the training's thread, or in a backward that one has begun."""
        if get_ident() == self.ident:
            return True
        kept: Any = torch._C
        if kept._current_graph_task_id() == -1:
            return False
        if not self._marks:
            # The owner of the backward is unknown.
            return True
        return kept._is_key_in_tls(_KEY) and kept._get_obj_in_tls(_KEY) is self._mark

    def asks_from(self) -> FrameType | None:
        """Return where the training's thread stands, for a backward of it that runs on one of autograd's.

        None on the training's own thread, and on one of the user's: they have it on their own stack.
        """
        if get_ident() == self.ident or not self.is_here():
            return None
        return sys._current_frames().get(self.ident)


def _keep(mark: object) -> None:
    keep: Any = torch._C._stash_obj_in_tls
    if _takes_over():
        _hand_over(mark)
    keep(_KEY, mark)


@cache
def _takes_over() -> bool:
    """Whether torch takes over a reference that it is handed in place of taking one of its own.

    torch 2.11 does so, and gives it back once the key has another value. Whoever hands it one that is
    still needed has an object freed under them, which crashes the interpreter at some later time.
    """
    keep: Any = torch._C._stash_obj_in_tls
    probe = object()
    before = sys.getrefcount(probe)
    keep(f"{_KEY} (probe)", probe)
    takes_over = sys.getrefcount(probe) == before
    if takes_over:
        _hand_over(probe)
        _hand_over(None)
    keep(f"{_KEY} (probe)", None)
    return takes_over


def _hand_over(value: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


NoteWait = Callable[[Any, int, int], None]
"""Called with what was waited for and the monotonic ns at which the wait began and ended."""


class WaitMarks(Protocol):
    """Notes, while a wait lasts, that the thread is in it; a Work or future is named by its id."""

    def waits(self, key: int, now_ns: int) -> object:
        """Note that a wait begins."""

    def waited(self, now_ns: int) -> None:
        """Note that it is over."""

    def wait_raised(self) -> None:
        """Note that it raised an exception."""


def patch_work_wait(now_ns: Callable[[], int], note: NoteWait, marks: WaitMarks) -> Callable[[], None]:
    """Have every `Work.wait` of this thread noted; returns what puts the original back."""
    return _patch(getattr(dist, "Work", None) if dist.is_available() else None, now_ns, note, marks)


def patch_future_wait(now_ns: Callable[[], int], note: NoteWait, marks: WaitMarks) -> Callable[[], None]:
    """Have this thread's waits for futures noted, `work.get_future().wait()` too; returns what undoes it."""
    return _patch(getattr(torch._C, "Future", None), now_ns, note, marks)


def _patch(owner: Any, now_ns: Callable[[], int], note: NoteWait, marks: WaitMarks) -> Callable[[], None]:
    ident, thread = threading.get_ident, threading.get_ident()

    def noted(original: Any) -> Callable[..., Any]:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            if ident() != thread:
                return original(self, *args, **kwargs)
            begun_ns = now_ns()
            marks.waits(id(self), begun_ns)
            try:
                result = original(self, *args, **kwargs)
                ended_ns = now_ns()
                marks.waited(ended_ns)
            except BaseException:
                ended_ns = now_ns()
                marks.wait_raised()
                raise
            finally:
                note(self, begun_ns, ended_ns)
            return result

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
