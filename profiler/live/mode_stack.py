"""Our dispatch mode on torch's stack, where the user's own modes may lie above it."""

from __future__ import annotations

from typing import Any

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from shardtoll.profiler.live.mode import SurveyMode


def put_on(mode: SurveyMode) -> None:
    """Put the mode on the stack, where it is not there already."""
    if not any(one is mode for one in _get_current_dispatch_mode_stack()):
        mode.__enter__()  # type: ignore[no-untyped-call]


def take_off(mode: SurveyMode, *, for_good: bool = False) -> None:
    """Take the mode off the stack; one of the user's above it keeps it there, idle, unless `for_good`."""
    stack = _get_current_dispatch_mode_stack()
    if not stack or not any(one is mode for one in stack) or not (for_good or stack[-1] is mode):
        return
    pop: Any = getattr(_python_dispatch, "_pop_mode", None)
    push: Any = getattr(_python_dispatch, "_push_mode", None)
    if stack[-1] is not mode and (pop is None or push is None):
        # There it stays, below the user's, and passes everything on.
        mode.muted = True
        return
    above = []
    while _get_current_dispatch_mode_stack()[-1] is not mode:
        above.append(pop())
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for one in reversed(above):
        push(one)
