"""What `shardtoll hang` reads: run folders with flight files, dumps of flight recorders, logs of torch."""

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
        why = f" ({notes[0]})" if notes else ""
        raise UsageError(
            f"nothing in {', '.join(map(str, paths[:3]))} says what ranks were doing{why}", _remedy(paths)
        )
    runs = {each.run_id for each in flights if each.run_id is not None}
    if len(runs) > 1:
        notes.append(f"the files are of {len(runs)} runs: give the folders of one job")
    return flights, read_at_ns, notes[:_MOST_NOTES]


def _remedy(paths: Sequence[Path]) -> str:
    """Say what to name: run folders one level below, as of several nodes, if there are any."""
    below: list[str] = []
    for path in paths:
        # What is not ours to read holds no run of ours.
        with contextlib.suppress(OSError):
            folders = [each for each in sorted(path.iterdir()) if each.is_dir()] if path.is_dir() else []
            for each in folders:
                with contextlib.suppress(OSError):
                    below += [str(each)] if flights_in(each) else []
    if below:
        return (
            f"name run folders: {' '.join(below[:_MOST_NAMED])}{' ...' if len(below) > _MOST_NAMED else ''}"
        )
    return "name the folder given as out= to audit(), a flight recorder dump or a log with torch's timeouts"


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
