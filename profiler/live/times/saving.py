"""When the training thread stands still while a checkpoint is written, and how many bytes came of it.

While a session is open `torch.save` and torch.distributed.checkpoint's `async_save` are replaced, and so is
the function that its `save` calls. The replacements note when they were entered and left. The originals are
put back on exit. Only calls of the training thread count, the outermost of those within others. Bytes are
those of the file, or the growth of an open one. For a distributed checkpoint they are those of this rank's
files. The files of an asynchronous checkpoint are not yet written, so their bytes stay unknown.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeAlias

import torch

from shardtoll.profiler.live.times.patches import Patches, patched

SAVE: Final = "torch.save"
DCP_SAVE: Final = "torch.distributed.checkpoint.save"
DCP_ASYNC: Final = "torch.distributed.checkpoint.async_save"
_MOST_FILES: Final = 4096

Bytes: TypeAlias = "Callable[[], int | None]"
"""Looks after a save how many bytes it wrote; None if nothing says so."""

Attempt: TypeAlias = "Callable[[Callable[[], Any]], Any]"
"""Does work that may fail and ends nothing: it returns None then."""

NoteSave: TypeAlias = Callable[[int, int, str, "int | None", FrameType], None]
"""Called with when the save began and ended (monotonic ns), its name, its bytes, and who asked for it."""


class Saving:
    """Notes the saves of the thread that it is made on."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        note: NoteSave,
        is_recording: Callable[[], bool],
        attempt: Attempt,
    ) -> None:
        self._now_ns = now_ns
        self._note = note
        self._attempt = attempt
        self._is_recording = is_recording
        self._thread = get_ident()
        self._inside = False

    def patch(self) -> Callable[[], None]:
        """Have saves noted; returns what undoes that."""

        def patch(patches: Patches) -> None:
            patches.around(torch, "save", lambda original: self._around(original, SAVE, bytes_of_file))
            # Not imported for this: a program that saves so has imported it, or does so unseen.
            saver = sys.modules.get("torch.distributed.checkpoint.state_dict_saver")
            # The function that `save` calls, whatever name a program imported `save` by.
            patches.around(
                saver, "_save_state_dict", lambda original: self._around(original, DCP_SAVE, bytes_of_rank)
            )
            for holder in (saver, sys.modules.get("torch.distributed.checkpoint")):
                patches.around(
                    holder, "async_save", lambda original: self._around(original, DCP_ASYNC, _unknown)
                )

        return patched(patch)

    def _around(
        self, original: Callable[..., Any], name: str, look: Callable[..., Bytes]
    ) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._inside or get_ident() != self._thread or not self._is_recording():
                return original(*args, **kwargs)
            size = self._attempt(lambda: look(*args, **kwargs))
            self._inside = True
            begun_ns = self._now_ns()
            done = False
            try:
                result = original(*args, **kwargs)
                done = True
                return result
            finally:
                self._inside = False
                ended_ns = self._now_ns()
                written = self._attempt(size) if done and size is not None else None
                self._note(begun_ns, ended_ns, name, written, sys._getframe(1))

        return save


def bytes_of_file(_: object = None, f: Any = None, *__: object, **___: object) -> Bytes:
    """Look at the file that `torch.save(obj, f)` writes; files that are not of Python's own say nothing.

    An open file may have held something before: what counts is how far its place has moved.
    """
    if isinstance(f, (str, Path)):
        return lambda: os.stat(f).st_size
    raw = f.raw if type(f) in (io.BufferedWriter, io.BufferedRandom) else f
    if type(raw) not in (io.BytesIO, io.FileIO):
        return _unknown()
    since = f.tell()
    return lambda: int(f.tell() - since)


def bytes_of_rank(
    _: object = None,
    storage_writer: Any = None,
    process_group: Any = None,
    __: object = 0,
    no_dist: bool = False,
    *___: object,
    **____: object,
) -> Bytes:
    """Look at this rank's files in the folder that the writer writes to; other stores say nothing.

    Their names have the rank in the group that saves; 0 if each process saves for itself.
    """
    alone = no_dist or not torch.distributed.is_initialized()
    # -1: the process is not in the group.
    rank = 0 if alone else torch.distributed.get_rank(process_group)
    # No property of a writer of the user's is run.
    return lambda: None if rank < 0 else _bytes_in(getattr(storage_writer, "__dict__", {}).get("path"), rank)


def _bytes_in(folder: object, rank: int) -> int | None:
    if not isinstance(folder, (str, Path)):
        return None
    total = 0
    for number in range(_MOST_FILES):
        try:
            # By name: a listing would have all files of all ranks.
            total += os.stat(Path(folder) / f"__{rank}_{number}.distcp").st_size
        except FileNotFoundError:
            return total if number else None
    return None


def _unknown(*_: object, **__: object) -> Bytes:
    return lambda: None
