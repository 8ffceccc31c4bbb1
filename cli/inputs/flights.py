"""Inputs of `shardtoll hang`: run folders with flight files, dumps of flight recorders, logs of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from shardtoll.ledger import ShardtollError, UsageError
from shardtoll.ledger.disk.flight_file import OTHER_VERSION_HINT, now_ns, read_flight
from shardtoll.ledger.disk.run_files import flights_in
from shardtoll.ledger.records.flight import RankFlight
from shardtoll.profiler.hang.hang_files import looks_like, read_file

_MOST_NOTES = 20
_MOST_NAMED = 3
_MOST_FOLDERS = 4096
_DEPTH = 2
"""Folders in folders that are looked into for runs."""


def read_all(paths: Sequence[Path]) -> tuple[list[RankFlight], int, list[str]]:
    """Return the flights of all ranks, the time at which they were read, and what could not be read.

    Raises UsageError if a path does not exist or nothing at all could be read.
    """
    flights: list[RankFlight] = []
    notes: list[str] = []
    # Before the files: a reader that is kept waiting between two of them makes no rank look late.
    read_at_ns = now_ns()
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}", "name a run folder, a flight recorder dump or a log")
        flights += _folder(path, notes) if path.is_dir() else _file(path, notes)
    if not flights and notes and notes[0].endswith(OTHER_VERSION_HINT):
        raise UsageError(notes[0].removesuffix(f": {OTHER_VERSION_HINT}"), OTHER_VERSION_HINT)
    if not flights:
        below = _below(paths)
        unread: list[str] = []
        flights = _of_one_job(below, unread)
        if not flights:
            raise _nothing(paths, below, notes)
        # Other files next to the runs are no news.
        notes = unread
    runs = {each.run_id for each in flights if each.run_id is not None}
    if len(runs) > 1:
        notes.append(f"the files are of {len(runs)} runs: give the folders of one job")
    return flights, read_at_ns, notes[:_MOST_NOTES]


def _below(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders with flight files in folders, and in folders of those, as of several nodes."""
    found: list[Path] = []
    looked = [(path, _DEPTH) for path in paths if path.is_dir()]
    while looked and len(found) < _MOST_FOLDERS:
        folder, deeper = looked.pop(0)
        # A folder of others holds no run of ours.
        with contextlib.suppress(OSError):
            for each in sorted(folder.iterdir()):
                if not each.is_dir() or each.is_symlink():
                    continue
                if flights_in(each):
                    found.append(each)
                elif deeper > 1:
                    looked.append((each, deeper - 1))
    return found


def _of_one_job(folders: Sequence[Path], notes: list[str]) -> list[RankFlight]:
    """Return the flights of run folders if they are of one run, each rank once; none if they are not."""
    flights = [each for folder in folders for each in _folder(folder, notes)]
    runs = {each.run_id for each in flights}
    ranks = {each.rank for each in flights}
    one = len(runs) == 1 and len(ranks) == len(flights) and (len(folders) == 1 or None not in runs)
    return flights if one else []


def _nothing(paths: Sequence[Path], below: Sequence[Path], notes: Sequence[str]) -> UsageError:
    """Return the error that nothing was read; it begins with the runs that there are."""
    named = ", ".join(map(str, paths[:_MOST_NAMED]))
    if below:
        several = f"{named} holds {len(below)} run folders of several jobs"
        shown = " ".join(map(str, below[:_MOST_NAMED])) + (" ..." if len(below) > _MOST_NAMED else "")
        return UsageError(several, f"name those of one job: {shown}")
    why = f" ({notes[0]})" if notes else ""
    return UsageError(
        f"nothing in {named} says what ranks were doing{why}",
        "name the folder given as out= to audit(), a flight recorder dump or a log with torch's timeouts",
    )


def flights_of(folder: Path) -> tuple[list[RankFlight], int, list[str]]:
    """Return the flights that a run's own files hold, when they were read, and what could not be read."""
    notes: list[str] = []
    flights = []
    read_at_ns = now_ns()
    for rank in flights_in(folder):
        try:
            flights.append(read_flight(folder, rank))
        except ShardtollError as error:
            notes.append(str(error))
    return flights, read_at_ns, notes


def _folder(folder: Path, notes: list[str]) -> list[RankFlight]:
    flights, _, unread = flights_of(folder)
    notes += unread
    known = {each.rank for each in flights}
    for path in sorted(folder.iterdir()):
        if path.is_file() and looks_like(path):
            flights += [each for each in _file(path, notes) if each.rank not in known or not known]
    return flights


def _file(path: Path, notes: list[str]) -> list[RankFlight]:
    try:
        return read_file(path)
    except ShardtollError as error:
        notes.append(str(error))
        return []
