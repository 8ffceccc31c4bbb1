"""Files that renderers write: whole or not at all, and one plain error if that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shardtoll.ledger import UsageError


def write(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write the file so that a reader sees the old one or the new one, never half of one.

    Data may come in pieces, so that a large file need not lie in memory whole.
    Raises UsageError when it cannot be written.
    """
    with replacing(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes the place of the one at `path` once all of it is written.

    Raises UsageError when it cannot be written.
    """
    # The process id keeps two writers of one file apart.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                yield file
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error})", "name a file in a folder that exists"
        ) from error
