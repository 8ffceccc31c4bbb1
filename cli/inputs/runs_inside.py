"""Folders that hold runs, and are none themselves: a single run is taken, of several one is to be named."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Final

DEPTH: Final = 2
"""Folders in folders that are looked into for runs."""
_MOST_ENTRIES: Final = 5_000


def runs_inside(path: str) -> list[str]:
    """Return the paths of the runs in a folder of them, in order; none if it is no such folder."""
    from shardtoll.ledger.disk.run_files import is_run_folder

    found: list[str] = []
    looked, seen = [(Path(path), DEPTH)] if Path(path).is_dir() else [], 0
    while looked and seen < _MOST_ENTRIES:
        folder, deeper = looked.pop(0)
        # A folder of others holds no run of ours.
        with contextlib.suppress(OSError):
            for each in sorted(folder.iterdir()):
                seen += 1
                if each.is_symlink() or not each.is_dir():
                    continue
                if is_run_folder(each):
                    found.append(str(each))
                elif deeper > 1:
                    looked.append((each, deeper - 1))
    return sorted(found)


def name_one(path: str, runs: list[str]) -> str:
    """Return that a folder holds these runs, of which one is to be named."""
    return f"{path} holds {len(runs):,} runs: name one of them, as {shlex.quote(runs[0])}"
