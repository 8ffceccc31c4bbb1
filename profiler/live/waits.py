"""When the training thread is blocked on a collective it was handed.

`Work.wait` of native collectives is no operator, so no dispatch mode sees it. While a session is open the
method is replaced by one that notes when it was entered and left; it is put back on exit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

NoteWait = Callable[[int, int], None]
"""Called with the monotonic ns at which a wait began and ended."""


def patch_work_wait(now_ns: Callable[[], int], note: NoteWait) -> Callable[[], None]:
    """Have every `Work.wait` noted; returns what puts the original back."""
    work = getattr(dist, "Work", None) if dist.is_available() else None
    if work is None:
        return lambda: None
    original = work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            note(begun_ns, now_ns())

    work.wait = wait

    def restore() -> None:
        if work.wait is wait:
            work.wait = original

    return restore
