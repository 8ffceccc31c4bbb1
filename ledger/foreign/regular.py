"""Reads files as others left them: a pipe or device is never waited for, nor a file larger than it may be."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_WITH_GZIP_HEAD: Final = 31


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file; OSError if it is no regular file, or has more than `most_bytes` bytes."""
    # Opening a pipe would wait for its writer.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(opened)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("not a regular file")
        if state.st_size <= most_bytes:
            with os.fdopen(opened, "rb", closefd=False) as file:
                # It may grow meanwhile. `read` makes room for all that it is asked for.
                data = file.read(state.st_size + 1)
                while len(data) > state.st_size and len(data) <= most_bytes:
                    more = file.read(_PIECE_BYTES)
                    if not more:
                        break
                    data += more
            if len(data) <= most_bytes:
                return data
    finally:
        os.close(opened)
    raise OSError(f"larger than {most_bytes:,} bytes")


def unzipped(data: bytes, most_bytes: int, *, part: bool = False) -> bytes:
    """Return what data packed with gzip holds, up to `most_bytes`, and other data as it is.

    `part`: the data may end early, and so does what comes of it. Raises OSError if it is damaged.
    """
    if not data.startswith(_GZIP):
        return data
    pieces: list[bytes] = []
    left = most_bytes
    try:
        # A file may be packed in several members, one after the other.
        while data.startswith(_GZIP) and left > 0:
            member = zlib.decompressobj(_WITH_GZIP_HEAD)
            pieces.append(member.decompress(data, left))
            left -= len(pieces[-1])
            if not member.eof:
                if left > 0 and not part:
                    raise OSError("damaged gzip file: it ends early")
                break
            data = member.unused_data
    except zlib.error as error:
        raise OSError(f"damaged gzip file: {error}") from error
    return b"".join(pieces)


def check_regular(path: Path) -> None:
    """Raise OSError if a path is there but no regular file; for readers that open it themselves."""
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
