"""Folders that hold runs, and are none themselves: a single run is taken, of several one is to be named."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from shardtoll.ledger import UsageError

DEPTH: Final = 2
"""Folders in folders that are looked into for runs."""
MOST_ENTRIES: Final = 5_000
"""Files and folders that are looked at. A part of the runs is never taken for all of them."""


class TooMany(UsageError):
    """There is more in a folder than is looked at, so nobody knows which runs it holds."""


def runs_inside(path: str) -> list[str]:
    """Return the paths of the runs in a folder of them, in order; none if it is no such folder.

    Raises TooMany.
    """
    from shardtoll.ledger.disk.run_files import is_about

    return sorted(map(str, folders_inside([Path(path)], is_about)))


def folders_inside(paths: Sequence[Path], is_such: Callable[[str], bool]) -> list[Path]:
    """Return the folders in those given, and in folders of those, that hold a file of such a name.

    Raises TooMany after so many files and folders, wherever they lie: all names count that are read.
    """
    found: list[Path] = []
    looked, seen = deque((path, 0) for path in paths if path.is_dir()), 0
    while looked:
        folder, depth = looked.popleft()
        inside: list[Path] = []
        # A folder of others, which cannot be read, holds no run of ours.
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if depth > 0 and is_such(entry.name):
                    found.append(folder)
                    inside.clear()
                    break
                seen += 1
                if seen > MOST_ENTRIES:
                    raise _too_many(paths)
                if depth < DEPTH and entry.is_dir(follow_symlinks=False):
                    inside.append(folder / entry.name)
        looked.extend((each, depth + 1) for each in sorted(inside))
    return found


def _too_many(paths: Sequence[Path]) -> TooMany:
    named = f"{paths[0]} holds" if len(paths) == 1 else f"{paths[0]} and other folders hold"
    return TooMany(
        f"{named} more than {MOST_ENTRIES:,} files and folders, too many to look for runs",
        "name a run in there",
    )


def name_one(path: str, runs: list[str]) -> str:
    """Return that a folder holds these runs, of which one is to be named."""
    return f"{path} holds {len(runs):,} runs: name one of them, as {shlex.quote(runs[0])}"
