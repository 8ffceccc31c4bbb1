"""The bytes of a rank's flight file in memory, and how they get into the file.

The file is written with `pwrite` and never mapped: a file that somebody cuts short, removes or replaces, a full
disk or a server that forgot it end a mapping with SIGBUS, and the training with it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.profiler.live.flight.kinds import Kind

_TEXT_MOST: Final = 120
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CHANGING: Final = slice(layout.WORDS_AT, layout.GROUPS_AT)
"""Words and ring, which follow each other."""


class Image:
    """One flight file. Raises OSError where the file cannot be written."""

    def __init__(self, path: Path, head: bytes) -> None:
        """Make the file, an earlier one of the name is removed."""
        self._path = path
        self.data = bytearray(layout.SIZE)
        self._view = memoryview(self.data)
        self._changed: list[tuple[int, int]] = []
        """Parts besides words and ring that the file has not yet: where each begins and ends."""
        self._texts: dict[Hashable, int] = {}
        """What a call says -> the slot of its text."""
        self._says: list[Hashable] = [None] * layout.TEXTS
        self._codes = [0] * layout.TEXTS
        self._used = [0] * layout.TEXTS
        """Of each slot: what it says, number and slot as calls name it, and the last call that did."""
        self._written = 0
        layout.HEAD.pack_into(self.data, 0, layout.MAGIC, layout.VERSION, len(head))
        self.data[layout.HEAD.size : layout.HEAD.size + len(head)] = head
        path.unlink(missing_ok=True)
        self._file = -1
        self._make()

    def _make(self) -> None:
        self._file = os.open(self._path, _FLAGS, 0o644)
        self._put(0, layout.SIZE)

    def _put(self, begin: int, end: int) -> None:
        if os.pwrite(self._file, self._view[begin:end], begin) < end - begin:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # -- what is written -------------------------------------------------------------------------------

    def write(self, *, ring: bool) -> None:
        """Bring the file up to date: texts before the calls that name them; without `ring` only the words."""
        changed, self._changed = self._changed, []
        for begin, end in changed:
            self._put(begin, end)
        self._put(_CHANGING.start, _CHANGING.stop if ring else layout.RING_AT)

    def repair(self) -> None:
        """Write a file anew that was cut short or removed since; one that was replaced stays."""
        state = os.fstat(self._file)
        if state.st_nlink == 0 and self._path.parent.is_dir() and not self._path.exists():
            os.close(self._file)
            self._file = -1
            self._make()
        elif state.st_size < layout.SIZE:
            self._put(0, layout.SIZE)

    def close(self) -> None:
        """Let go of the file; once more does no harm."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def slot(self, at: int, data: bytes | None) -> None:
        """Place a slot's bytes; None is too much for its room and leaves what was there."""
        if data is not None:
            self.data[at : at + len(data)] = data
            self._changed.append((at, at + len(data)))

    # -- texts -----------------------------------------------------------------------------------------

    def code(self, kind: Kind, number: int) -> int:
        """Return number and slot of the text that says what call `number` is, placed now if it is new.

        There are as many slots as calls in the ring, so the one used longest ago is that of none of them.
        """
        code, used = kind.code, self._used
        index = code % layout.TEXTS
        if not code or self._codes[index] != code:
            says = kind.says
            index = self._texts.get(says, -1)
            if index < 0:
                index = self._place(kind)
            code = kind.code = self._codes[index]
        if number > used[index]:
            used[index] = number
        return code

    def _place(self, kind: Kind) -> int:
        """Give the slot that was used longest ago to a text."""
        index = self._used.index(min(self._used))
        self._texts.pop(self._says[index], None)
        says = self._says[index] = kind.says
        self._texts[says] = index
        self._written += 1
        self._codes[index] = self._written * layout.TEXTS + index
        self.slot(layout.TEXTS_AT + index * layout.TEXT_BYTES, _text(kind, self._written))
        return index

    def group_places(self, index: int, finished: int, issued: int) -> None:
        """Place what a group has finished and issued last."""
        at = layout.GROUPS_AT + index * layout.GROUP_BYTES
        data = layout.PLACES.pack(finished, issued)
        if index < layout.GROUPS and self.data[at : at + len(data)] != data:
            self.slot(at, data)


def group_piece(index: int, name: str, ranks: tuple[int, ...], text: str | None) -> list[tuple[int, bytes]]:
    """Return where what a group is belongs, and the bytes; nothing of a group that has no slot."""
    if index >= layout.GROUPS:
        return []
    at = layout.GROUPS_AT + index * layout.GROUP_BYTES + layout.GROUP_TEXT_AT
    room = layout.GROUP_BYTES - layout.GROUP_TEXT_AT
    says = {"name": name[:_TEXT_MOST], "text": text and text[:40], "ranks": layout.runs_of(ranks)}
    data = layout.text_slot(says, 1, room) or layout.text_slot({**says, "ranks": []}, 1, room)
    return [] if data is None else [(at, data)]


def _text(kind: Kind, number: int) -> bytes | None:
    message, (source, module, phase) = kind.message, kind.place
    says: dict[str, Any] = {
        "op": message.op,
        "group": message.group[:_TEXT_MOST],
        "bytes": message.message_bytes,
        "dtype": message.dtype,
        "reduce": message.reduce_op,
        "root": message.root,
        "gets": message.received_bytes,
        "source": None if source is None else source[-_TEXT_MOST:],
        "module": None if module is None else module[-_TEXT_MOST // 2 :],
        "phase": phase,
    }
    small = {**says, "source": (says["source"] or "")[-40:] or None, "module": None}
    return layout.text_slot(says, number, layout.TEXT_BYTES) or layout.text_slot(
        small, number, layout.TEXT_BYTES
    )
