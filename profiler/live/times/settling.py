"""Waiting until gloo's threads have nothing left to do for what has just ended.

A thread of gloo wakes whoever waits for a collective first. Only then does it report the end to torch's
profiler and give back the tensors, for which it may need Python's lock. Who stops the profiler in between has
it write to freed memory. A process that leaves the interpreter in between is aborted ("terminate called
without an active exception"). So may any script be whose last call is a collective, with us or without (torch
2.13: one in ten on busy cores).
"""

from __future__ import annotations

import os
import time
from typing import Final

_PAUSE_S: Final = 0.0005
_MOST_S: Final = 0.02
LEAVING_S: Final = 0.02
"""Wait before the interpreter ends: a thread that waits for Python's lock looks like an idle one."""


def settle(least_s: float = _PAUSE_S) -> None:
    """Wait `least_s`, and while one of gloo's threads runs or waits for a core up to 20 ms more."""
    time.sleep(least_s)
    until_s = time.monotonic() + _MOST_S
    while _gloo_runs() and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)


def _gloo_runs() -> bool:
    """Whether one of gloo's threads runs or waits for a core; False if the system does not say."""
    try:
        with os.scandir("/proc/self/task") as tasks:
            return any(_runs(task.path) for task in tasks)
    except OSError:
        return False


def _runs(task: str) -> bool:
    """Whether the thread of that folder of /proc is one of gloo's, and runs or waits for a core."""
    try:
        with open(f"{task}/stat", "rb") as file:
            _, _, about = file.read().partition(b"(")
    except OSError:
        # A thread that has just ended.
        return False
    name, _, rest = about.rpartition(b") ")
    return b"gloo" in name and rest[:1] == b"R"
