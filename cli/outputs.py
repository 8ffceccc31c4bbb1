"""What the command line writes: a renderer for each ending of a file's name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from shardtoll.ledger import Report, UsageError

Writer: TypeAlias = Callable[[Report, Path], list[Path]]
"""Writes a report to a path and returns the files written."""

WRITERS: Final = {
    ".html": "shardtoll.dashboards.html_file",
    ".json": "shardtoll.dashboards.json_file",
    ".csv": "shardtoll.dashboards.csv_file",
}
"""Ending of a file's name -> the module whose `write` makes such a file."""


def choose_writers(targets: Sequence[Path], *, sources: int) -> list[tuple[Writer, Path]]:
    """Return the writer of each target, before anything is read.

    Raises UsageError for an ending that none writes, for a target given twice, for one that cannot be
    written, and for targets of several sources, which would overwrite each other.
    """
    if targets and sources > 1:
        raise UsageError(f"-o is given with {sources} paths", "report them one by one, each to its own file")
    if len(set(targets)) < len(targets):
        raise UsageError(f"-o names {_twice(targets)} twice", "name each file once")
    chosen = [(_writer(target), target) for target in targets]
    for target in targets:
        _check(target)
    return chosen


def _check(target: Path) -> None:
    """Raise UsageError where the file can plainly not be written; told before the work, not after it."""
    folder = target.parent
    try:
        if target.is_dir():
            why = os.strerror(errno.EISDIR)
        elif not folder.exists():
            why = os.strerror(errno.ENOENT)
        elif not folder.is_dir():
            why = os.strerror(errno.ENOTDIR)
        elif not os.access(folder, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES)
        else:
            return
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
    raise UsageError(f"cannot write {target} ({why})", "name a file in a folder that exists")


def _twice(targets: Sequence[Path]) -> Path:
    return next(target for at, target in enumerate(targets) if target in targets[:at])


def _writer(target: Path) -> Writer:
    module = WRITERS.get(target.suffix.lower())
    if module is None:
        raise UsageError(
            f"-o {target} ends in none of {', '.join(WRITERS)}", "end the file's name in one of them"
        )
    writer: Writer = import_module(module).write
    return writer
