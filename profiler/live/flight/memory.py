"""Memory that outlives a killed process: what the training thread notes goes there and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk.flight_memory import memory_path, new_name, remove_dead


class Memory:
    """Bytes of a flight file's size; of this process only if the system has no shared memory."""

    def __init__(self) -> None:
        remove_dead()
        self.name = new_name()
        self._path = memory_path(self.name)
        self.data: bytearray | mmap.mmap = bytearray(layout.SIZE)
        if self._path is not None:
            try:
                self.data = _mapped(self._path)
            except OSError:
                self.name = self._path = None

    def touch(self) -> None:
        """Renew its age: writing through a mapping leaves a file's time as it was."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def remove(self) -> None:
        """Let nobody read it any more; what is noted after that goes with the process."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # All of it now: a page that cannot be had when it is written later would kill the job.
        if os.write(descriptor, bytes(layout.SIZE)) < layout.SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return mmap.mmap(descriptor, layout.SIZE)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
