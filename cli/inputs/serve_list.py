"""The things to show at a path: one thing, or a folder of runs and saved reports, looked at cheaply."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardtoll.cli.inputs.kinds import Input, sort_inputs
from shardtoll.dashboards.app.source import Kind
from shardtoll.ledger import ShardtollError
from shardtoll.ledger.disk.follow import ENDED_AFTER_S
from shardtoll.ledger.disk.run_files import rank_of
from shardtoll.ledger.disk.run_reader import known_of
from shardtoll.ledger.foreign.regular import unzipped

DEPTH: Final = 2
"""Folders in folders that are looked into for runs."""
MOST_ENTRIES: Final = 5_000
"""Files and folders looked at in a folder of runs, all levels together; the run folders' own not counted."""
MOST_RANKS_LOOKED_AT: Final = 64
"""Ranks, the first of a run, whose files are asked when they were changed and how large they are."""
_PEEK_BYTES: Final = 4_096
_OURS: Final = ("calibration.json",)
"""Files that `calibrate` and `demo` write in addition to runs."""
_JSON: Final = (".json", ".json.gz")
_REPORT: Final = re.compile(rb'\s*\{"schema_version"\s*:\s*\d{1,9}')
_WORLD_SIZE: Final = re.compile(_REPORT.pattern + rb'\s*,\s*"run"\s*:\s*\{\s*"world_size"\s*:\s*(\d{1,7})\b')
"""How a saved report begins."""


@dataclass(frozen=True, slots=True)
class ServeItem:
    """One thing to show."""

    name: str
    item: Input
    kind: Kind
    modified_ns: int | None
    world_size: int | None = None
    error: str | None = None
    size_bytes: int = 0
    """About how large its files are."""


def look(path: str, now_s: float) -> tuple[list[ServeItem], bool]:
    """Return what there is, the last changed first, and whether it is one thing by itself.

    Links that lead out of a folder of runs are passed over. An empty folder is a folder that runs will be
    written to. Raises UsageError if the path is nothing to show.
    """
    root = Path(path)
    if not root.is_dir():
        (item,) = sort_inputs([path])
        return [_other(root.name or path, item)], True
    if (run := _run(root, root.resolve().name, now_s)) is not None:
        return [run], True
    inside = _inside(root, now_s)
    if not inside and next(iter(_entries(root)), None) is not None:
        (item,) = sort_inputs([path])
        return [_other(root.resolve().name, item)], True
    return sorted(inside, key=lambda place: (-(place.modified_ns or 0), place.name)), False


def left_out(path: str) -> list[str]:
    """Return the names of JSON files right in a folder of runs that are no saved reports: none is listed."""
    return [
        entry.name
        for entry in _entries(Path(path))
        if entry.name.endswith(".json")
        and entry.name not in _OURS
        and not _is_folder(entry)
        and not _is_report(Path(entry.path))
    ]


def _inside(root: Path, now_s: float) -> list[ServeItem]:
    places: list[ServeItem] = []
    whole = root.resolve()
    left, seen = [(root, DEPTH)], 0
    while left:
        folder, deeper = left.pop(0)
        for entry in _entries(folder):
            seen += 1
            if seen > MOST_ENTRIES:
                return places
            path = Path(entry.path)
            name = path.relative_to(root).as_posix()
            if _leads_out(entry, whole):
                continue
            if _is_folder(entry):
                place = _run(path, name, now_s, whole)
                if place is not None:
                    places.append(place)
                elif deeper > 1:
                    left.append((path, deeper - 1))
            elif entry.name.endswith(_JSON) and _is_report(path):
                places.append(_other(name, Input("report", [entry.path])))
    return places


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
            )
    except OSError:
        return []


def _leads_out(entry: os.DirEntry[str], whole: Path) -> bool:
    """Whether it is a link to a place outside of the folder that is served, as others may have put there."""
    try:
        return entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(whole)
    except (OSError, RuntimeError):
        # A link that leads to itself.
        return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _run(folder: Path, name: str, now_s: float, whole: Path | None = None) -> ServeItem | None:
    """The run in a folder; None if there is none, or if one of its files leads out of `whole`."""
    ranks: set[int] = set()
    is_open, modified_ns, size_bytes = False, 0, 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                rank = rank_of(entry.name)
                # A pipe would be waited for without end.
                if rank is None or not entry.is_file():
                    continue
                if whole is not None and _leads_out(entry, whole):
                    return None
                if entry.name.startswith("run."):
                    ranks.add(rank)
                is_open |= entry.name.endswith(".arrows")
                if rank < MOST_RANKS_LOOKED_AT or not modified_ns:
                    status = entry.stat()
                    modified_ns = max(modified_ns, status.st_mtime_ns)
                    size_bytes += status.st_size
    except OSError:
        return None
    if not ranks:
        return None
    item = Input("run", [str(folder)])
    kind: Kind = "live" if is_open and now_s - modified_ns / 1e9 < ENDED_AFTER_S else "run"
    try:
        world_size = known_of(folder, min(ranks)).run.world_size
    except ShardtollError as error:
        return ServeItem(name, item, kind, modified_ns, None, str(error))
    size_bytes = size_bytes * len(ranks) // max(1, sum(rank < MOST_RANKS_LOOKED_AT for rank in ranks))
    return ServeItem(name, item, kind, modified_ns, world_size, None, size_bytes)


def _other(name: str, item: Input) -> ServeItem:
    kind: Kind = "report" if item.kind == "report" else "traces"
    try:
        states = [os.stat(path) for path in item.paths]
    except (OSError, ValueError):
        return ServeItem(name, item, kind, None)
    modified_ns, size_bytes = (
        max(state.st_mtime_ns for state in states),
        sum(state.st_size for state in states),
    )
    if kind != "report":
        return ServeItem(name, item, kind, modified_ns, size_bytes=size_bytes)
    said = _WORLD_SIZE.match(_beginning(Path(item.paths[0])))
    return ServeItem(
        name, item, kind, modified_ns, int(said.group(1)) if said else None, size_bytes=size_bytes
    )


def _is_report(path: Path) -> bool:
    return _REPORT.match(_beginning(path)) is not None


def _beginning(path: Path) -> bytes:
    """Return a file's first bytes; none for anything else than a file, as a pipe would be waited for without
    end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as file:
            return unzipped(file.read(_PEEK_BYTES), _PEEK_BYTES, part=True)
    except OSError:
        return b""
