"""A run folder that is still being written, read again and again; each reading costs as much as the new part.

Ranks may appear late, stand still, close or be replaced by those of another job. A reader always gets a state
the run was in. It holds the steps that every writing rank has finished, and no row of a step under way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.disk.journal import JournalTail, OtherColumns
from shardtoll.ledger.disk.run_files import rank_of, table_path
from shardtoll.ledger.disk.run_reader import (
    Known,
    ended_early,
    finished_only,
    known_of,
    one_run,
    rank_ledger,
    read_table,
)
from shardtoll.ledger.records.errors import RunFolderError, first_line
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.tables import SCHEMAS

ENDED_AFTER_S: Final = 600.0
"""A folder that nothing was written to for so long is no longer waited for, whether it was closed or not."""
BEHIND_S: Final = 60.0
"""A rank whose files are older than the newest by more than this holds the others' steps back no longer."""

Mark: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change in ns of a file: what differs when the file does."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A run at one moment."""

    ledger: Ledger
    live: bool
    """More may come: a rank has not closed, and the folder was written to not long ago."""
    version: str
    """Version of the files before they were read."""


@dataclass(slots=True)
class _Rank:
    marks: Mapping[str, Mark]
    known: Known
    journals: dict[str, JournalTail] = field(default_factory=dict)
    tables: dict[str, pa.Table] = field(default_factory=dict)

    def last_step(self) -> int | None:
        """The last finished step."""
        last_seen: int | None = pc.max(self.tables["steps"].column("step")).as_py()
        return last_seen

    @property
    def changed_ns(self) -> int:
        return max(mark[2] for mark in self.marks.values())


class Follower:
    """Reads one run folder repeatedly; not for use by several threads at once."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        """`now_s` is the time of day in seconds; a run that did not change for long by it stands still."""
        self._folder = folder
        self._now_s = now_s
        self._ranks: dict[int, _Rank] = {}

    def version(self) -> str:
        """Return a short text that differs when the folder's files do. Reads none of them.

        Raises RunFolderError if there is no run (any more).
        """
        return self._version(self._look())

    def read(self) -> Followed:
        """Return the run as it is now, reading the new part.

        Raises RunFolderError or SchemaError if a file cannot be read; the next call tries again.
        """
        seen = self._look()
        for gone in self._ranks.keys() - seen.keys():
            del self._ranks[gone]
        for number, marks in seen.items():
            self._read_rank(number, marks)
        ranks = [self._ranks[rank] for rank in sorted(seen)]
        live = self._written_to(seen) and not all(rank.known.closed for rank in ranks)
        cut = _common_step(ranks) if live else None
        parts = []
        for rank in ranks:
            tables = rank.tables
            if live:
                tables = tables if cut is None else _until(tables, cut)
            elif not rank.known.closed:
                tables = ended_early(self._folder, rank.known, tables)
            parts.append(rank_ledger(rank.known, tables))
        ledger = one_run(parts, {rank.known.run_id for rank in ranks}, self._folder)
        return Followed(ledger, live, self._version(seen))

    def _look(self) -> dict[int, dict[str, Mark]]:
        """The files of every rank with a description of the run, with their marks."""
        seen: dict[int, dict[str, Mark]] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    rank = rank_of(entry.name)
                    if rank is None or entry.name.endswith(".part"):
                        continue
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:
                        # Removed since it was listed: a rank that closes removes its journals.
                        continue
                    mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                    seen.setdefault(rank, {})[entry.name] = mark
        except OSError as error:
            why = error.strerror or error
            raise RunFolderError(
                f"{self._folder} cannot be read ({why})", "the run was moved or removed"
            ) from error
        whole = {
            rank: marks for rank, marks in seen.items() if any(name.startswith("run.") for name in marks)
        }
        if not whole:
            raise RunFolderError(
                f"{self._folder} holds no shardtoll run", "name the folder given as out= to audit()"
            )
        return whole

    def _written_to(self, seen: Mapping[int, Mapping[str, Mark]]) -> bool:
        newest_ns = max(mark[2] for marks in seen.values() for mark in marks.values())
        return self._now_s() - newest_ns / 1e9 < ENDED_AFTER_S

    def _version(self, seen: Mapping[int, Mapping[str, Mark]]) -> str:
        text = repr(sorted((rank, sorted(marks.items())) for rank, marks in seen.items()))
        digest = blake2b(text.encode(), digest_size=12).hexdigest()
        # A run that stands still is read differently in the end, though no file changes.
        return digest if self._written_to(seen) else f"{digest}-ended"

    def _read_rank(self, number: int, marks: Mapping[str, Mark]) -> None:
        rank = self._ranks.get(number)
        if rank is not None and rank.marks == marks:
            return
        head = known_of(self._folder, number)
        if rank is None or rank.known.run_id != head.run_id:
            rank = _Rank({}, head)
        # Remembered only once all was read: what fails is tried again.
        rank.tables = self._closed(number) if head.closed else self._open(number, rank)
        rank.known, rank.marks = head, marks
        self._ranks[number] = rank

    def _closed(self, rank: int) -> dict[str, pa.Table]:
        return {table: read_table(self._folder, table, rank, closed=True) for table in SCHEMAS}

    def _open(self, number: int, rank: _Rank) -> dict[str, pa.Table]:
        # `steps` first: rows that are appended meanwhile belong to a step that is not in it yet.
        steps_first = sorted(SCHEMAS, key=lambda table: table != "steps")
        return finished_only({table: self._journal(number, rank, table) for table in steps_first})

    def _journal(self, number: int, rank: _Rank, table: str) -> pa.Table:
        path = table_path(self._folder, table, number, closed=False)
        tail = rank.journals.setdefault(table, JournalTail(table, path))
        try:
            return tail.read()
        except OtherColumns as error:
            raise RunFolderError(str(error), "run the job again with this version of shardtoll") from error
        except ValueError as error:
            raise RunFolderError(f"{path} is damaged ({first_line(error)})", "run the job again") from error
        except OSError:
            # A rank that is closing has turned this journal into Parquet already.
            return read_table(self._folder, table, number, closed=False)


def _common_step(ranks: list[_Rank]) -> int | None:
    """The last step that all ranks have finished which have any, and still write."""
    newest_ns = max(rank.changed_ns for rank in ranks)
    keeping_up = [rank for rank in ranks if newest_ns - rank.changed_ns <= BEHIND_S * 1e9]
    lasts = [last for rank in keeping_up if (last := rank.last_step()) is not None]
    return min(lasts, default=None)


def _until(tables: Mapping[str, pa.Table], last: int) -> dict[str, pa.Table]:
    """The rows of steps up to `last`, and those outside of steps."""
    kept = dict(tables)
    newest = pc.max(tables["steps"].column("step")).as_py()
    if newest is None or newest <= last:
        return kept
    for name, table in tables.items():
        if "step" in table.column_names:
            step = table.column("step")
            kept[name] = table.filter(pc.or_kleene(pc.is_null(step), pc.less_equal(step, last)))
    return kept
