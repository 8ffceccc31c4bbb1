"""Identity of this process, for a reader that asks whether it still lives."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from shardtoll.ledger.disk.processes import pid_namespace, started_ticks


def birth() -> dict[str, Any]:
    """Return host, process and clock as the head of a flight file has them; None if unknown."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname()[:200],
        "boot": _boot_id(),
        "pids": pid_namespace(),
        "born_ticks": started_ticks(os.getpid()),
        "epoch_ns": time.time_ns() - time.monotonic_ns(),
    }


def _boot_id() -> str | None:
    """Return what distinguishes one start of this host from another; None if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
