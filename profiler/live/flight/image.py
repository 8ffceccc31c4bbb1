"""A rank's flight file: how what is noted in memory gets into it.

The file is written with `pwrite` and never mapped. If the file is cut short, the disk is full or a server
forgot it, a mapping would end with SIGBUS, and the training too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.profiler.live.flight.memory import Memory

_PIECES: Final = 64
"""If more parts have changed, all of them are written as one."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Image:
    """One flight file, and the memory it is written from. Raises OSError if the file cannot be written."""

    def __init__(self, path: Path, memory: Memory, head: bytes) -> None:
        """Make the file; an earlier one of the name is removed."""
        self._path = path
        self._memory = memory
        self.data = memory.data
        self._changed: list[tuple[int, int]] = []
        """Other parts than words and ring that the file has not yet: where each begins and ends."""
        self.data[layout.HEAD.size : layout.HEAD.size + len(head)] = head
        # The magic last: without it nobody reads the memory.
        layout.HEAD.pack_into(self.data, 0, layout.MAGIC, layout.VERSION, len(head))
        self._file = -1
        try:
            path.unlink(missing_ok=True)
            self._make()
        except BaseException:
            # An interrupt too: the memory would stay as long as the process.
            self.close()
            raise

    def _make(self) -> None:
        self._file = os.open(self._path, _FLAGS, 0o644)
        self._put(0, layout.SIZE)

    def _put(self, begin: int, end: int) -> None:
        # A copy: the training thread goes on while the system writes.
        if os.pwrite(self._file, self.data[begin:end], begin) < end - begin:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def place(self, at: int, data: bytes) -> None:
        """Place bytes that stand neither among the words nor in the ring."""
        self.data[at : at + len(data)] = data
        if len(self._changed) >= _PIECES:
            self._changed = [(layout.GROUPS_AT, layout.SIZE)]
        self._changed.append((at, at + len(data)))

    def place_group(self, index: int, finished: int, issued: int) -> None:
        """Place what a group has finished and issued last; of one without a slot nothing is kept."""
        at = layout.GROUPS_AT + index * layout.GROUP_BYTES
        data = layout.PLACES.pack(finished, issued)
        if index < layout.GROUPS and self.data[at : at + len(data)] != data:
            self.place(at, data)

    def write(self) -> None:
        """Bring the file up to date: first words and calls, then the texts that came since.

        A text that made room for another is overwritten after the calls that named it.
        """
        changed, self._changed = self._changed, []
        try:
            self._put(layout.WORDS_AT, layout.GROUPS_AT)
            while changed:
                # By the end of the list, as the training thread may add to this one still.
                self._put(*changed.pop())
        except OSError:
            self._changed = [(layout.GROUPS_AT, layout.SIZE)]
            raise

    def repair(self) -> None:
        """Write a file anew that was cut short or removed; one that was replaced stays."""
        self._memory.touch()
        if self._file < 0:
            self._make()
        state = os.fstat(self._file)
        if state.st_nlink == 0 and self._path.parent.is_dir() and not self._path.exists():
            file, self._file = self._file, -1
            os.close(file)
            self._make()
        elif state.st_size < layout.SIZE:
            self._put(0, layout.SIZE)

    def close(self, *, forked: bool = False) -> None:
        """Let go of the file and, but in a forked child, of the memory; once more does no harm."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        if not forked:
            self.remove_memory()

    def remove_memory(self) -> None:
        """Let nobody read the memory any more."""
        self._memory.remove()
