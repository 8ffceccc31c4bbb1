"""Files of a run folder: their names, one per table and rank, and which are ours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from shardtoll.ledger.tables.tables import SCHEMAS

STORE_VERSION: Final = 1
OURS = re.compile(
    rf"^(run|trace|{'|'.join(SCHEMAS)})\.rank(\d{{5,}})\.(json|json\.gz|arrows|parquet)(\.part)?$"
)
BESIDE = re.compile(r"^(flight|stacks|recorder|provisional)\.rank(\d{5,})\.(bin|txt|pickle|arrows)(\.part)?$")
"""Files that say what a rank was doing when it hung or was killed; a closed run's tables do not include
them."""


def file_name(stem: str, rank: int, suffix: str) -> str:
    """Return the name of a rank's file."""
    return f"{stem}.rank{rank:05d}.{suffix}"


def write_whole(path: Path, data: bytes) -> None:
    """Write so that a reader sees the old file or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


def clear(folder: Path, rank: int | None = None) -> None:
    """Remove an earlier run's files from the folder: all of ours, or those of one rank."""
    for path in folder.iterdir() if folder.is_dir() else ():
        ours = OURS.match(path.name) or BESIDE.match(path.name)
        if ours and (rank is None or int(ours.group(2)) == rank):
            path.unlink(missing_ok=True)


def flight_path(folder: Path, rank: int) -> Path:
    """Return where a rank says what it is doing while its audit is open."""
    return folder / file_name("flight", rank, "bin")


def stacks_path(folder: Path, rank: int) -> Path:
    """Return where a rank's watchdog writes the stacks of all threads once it hangs."""
    return folder / file_name("stacks", rank, "txt")


def recorder_path(folder: Path, rank: int) -> Path:
    """Return where a rank's watchdog writes torch's flight recorder once it hangs."""
    return folder / file_name("recorder", rank, "pickle")


def provisional_path(folder: Path, rank: int) -> Path:
    """Return where a rank keeps rows of watched steps that it has yet to append to its journals."""
    return folder / file_name("provisional", rank, "arrows")


def flights_in(folder: Path) -> list[int]:
    """Return the ranks that left a flight file in the folder, ascending."""
    return _left_in(folder, "flight")


def stacks_in(folder: Path) -> list[int]:
    """Return the ranks whose watchdog wrote stacks into the folder, ascending."""
    return _left_in(folder, "stacks")


def _left_in(folder: Path, stem: str) -> list[int]:
    matches = (BESIDE.match(path.name) for path in folder.iterdir())
    return sorted({int(match.group(2)) for match in matches if match and match.group(1) == stem})


def trace_path(folder: Path, rank: int) -> Path:
    """Return where a rank's Kineto trace lies in a run folder, whether it is there or not."""
    return folder / file_name("trace", rank, "json.gz")


def table_path(folder: Path, table: str, rank: int, *, closed: bool) -> Path:
    """Return where a rank's table lies: Parquet once the rank closed, before that its journal."""
    return folder / file_name(table, rank, "parquet" if closed else "arrows")


def meta_path(folder: Path, rank: int) -> Path:
    """Return where a rank says what it knows of the run."""
    return folder / file_name("run", rank, "json")


def rank_of(name: str) -> int | None:
    """Return the rank that a file in a run folder belongs to by its name; None if it is not ours."""
    ours = OURS.match(name)
    return int(ours.group(2)) if ours else None


def is_about(name: str) -> bool:
    """Whether a file of this name holds a rank's facts about a run: its folder is a run's."""
    ours = OURS.match(name)
    return ours is not None and ours.group(1) == "run"


def is_flight(name: str) -> bool:
    """Whether a file of this name says what a rank was doing while its audit was open."""
    beside = BESIDE.match(name)
    return beside is not None and beside.group(1) == "flight"


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that left files in the folder, ascending."""
    matches = (OURS.match(path.name) for path in folder.iterdir())
    return sorted({int(match.group(2)) for match in matches if match and match.group(1) == "run"})


def is_run_folder(path: Path) -> bool:
    """Whether the path is a folder with at least one rank of a run in it."""
    return path.is_dir() and bool(ranks_in(path))
