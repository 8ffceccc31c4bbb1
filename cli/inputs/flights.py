"""Inputs of `shardtoll hang`: run folders with flight files, dumps of flight recorders, logs of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardtoll.cli.inputs.runs_inside import folders_inside
from shardtoll.ledger import ShardtollError, UsageError
from shardtoll.ledger.disk.flight_file import OTHER_VERSION_HINT, now_ns, read_flight
from shardtoll.ledger.disk.run_files import flights_in, is_flight
from shardtoll.ledger.records.flight import RankFlight
from shardtoll.profiler.hang.hang_files import looks_like, read_file

_MOST_NOTES = 20
_MOST_NAMED = 3


def read_all(paths: Sequence[Path]) -> tuple[list[RankFlight], int, list[str]]:
    """Return the flights of all ranks, the time at which they were read, and what could not be read.

    Raises UsageError if a path does not exist, nothing at all could be read, or a folder holds too much.
    """
    flights: list[RankFlight] = []
    notes: list[str] = []
    named: list[str] = []
    # Before the files: a reader that is kept waiting between two of them makes no rank look late.
    read_at_ns = now_ns()
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}", "name a run folder, a flight recorder dump or a log")
        unread: list[str] = []
        flights += _folder(path, unread) if path.is_dir() else _file(path, unread)
        notes += unread
        named += [] if path.is_dir() else unread
    if not flights and notes and notes[0].endswith(OTHER_VERSION_HINT):
        raise UsageError(notes[0].removesuffix(f": {OTHER_VERSION_HINT}"), OTHER_VERSION_HINT)
    if not flights:
        below = folders_inside([path for path in paths if path.is_dir()], is_flight)
        unread = []
        flights = _of_one_job(below, unread)
        if not flights:
            raise _nothing(paths, below, notes)
        # Other files next to the runs are no news, unlike those that were named.
        notes = [*named, *unread]
    runs = {each.run_id for each in flights if each.run_id is not None}
    if len(runs) > 1:
        notes.append(f"the files are of {len(runs)} runs: give the folders of one job")
    return flights, read_at_ns, notes[:_MOST_NOTES]


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
