"""Whether a process of this host still runs, and what distinguishes it from a later one of its number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that the system lists."""

    state: str
    """One letter, as `R`; `Z` and `X` run no more."""
    started_ticks: int
    """When it started, since the host did."""

    @property
    def has_ended(self) -> bool:
        """Whether it only waits to be taken off the list."""
        return self.state in "ZX"


def process_of(pid: int) -> Process | None:
    """Return the process of that number in this namespace; None if there is none."""
    try:
        # The name of the program stands in brackets and may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(fields[0], int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def is_running(pid: int) -> bool:
    """Whether a process of that number runs; a zombie does not."""
    process = process_of(pid)
    return process is not None and not process.has_ended


def started_ticks(pid: int) -> int | None:
    """Return when a running process started, which distinguishes it from a later one of its number."""
    process = process_of(pid)
    return None if process is None or process.has_ended else process.started_ticks


def pid_namespace() -> str | None:
    """Return the identity of this process's PID namespace on the host; None if it has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
