"""The memory of a rank that its flight file is written from: readers on its host see every call at once.

It lies in the system's folder of shared memory, outlives a process that is killed, and is removed when an
audit ends. The file in the run folder is up to a quarter second behind, and is all that other hosts see.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from pathlib import Path
from typing import Final

from shardtoll.ledger.disk.processes import pid_namespace, started_ticks

FOLDER: Final = Path("/dev/shm")
KEPT: Final = 64
KEPT_S: Final = 3600.0
"""How many of killed ranks stay at most, and how long: 18 MB in all."""
_NAME: Final = re.compile(r"shardtoll-(\d{1,20})-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}\Z")


def new_name() -> str | None:
    """Return a name for the memory of this process: its namespace, number and start; None if unknown."""
    pid = os.getpid()
    space, started = _namespace(), started_ticks(pid)
    return (
        None if space is None or started is None else f"shardtoll-{space}-{pid}-{started}-{uuid.uuid4().hex}"
    )


def memory_path(name: object) -> Path | None:
    """Return where the memory of that name lies; None if that is no such name."""
    return FOLDER / name if isinstance(name, str) and _NAME.match(name) else None


def remove_dead() -> None:
    """Remove what processes of this user have left that were killed an hour ago, and all but the newest."""
    space = _namespace()
    dead = []
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in entries:
            name = _NAME.match(entry.name)
            if name and name[1] == space and started_ticks(int(name[2])) != int(name[3]):
                # Ranks that start together all look: another may have removed it just now.
                with contextlib.suppress(FileNotFoundError):
                    dead.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    now_s = time.time()
    for place, (touched_s, file) in enumerate(sorted(dead, reverse=True)):
        if place < KEPT and now_s - touched_s < KEPT_S:
            # Its job may be asked about yet: a later one on the host says nothing of that.
            continue
        try:
            (FOLDER / file).unlink(missing_ok=True)
        except OSError:
            # The file belongs to another user.
            continue


def _namespace() -> str | None:
    """Return the number of this process's PID namespace."""
    name = pid_namespace()
    return None if name is None else name.strip("pid:[]")
