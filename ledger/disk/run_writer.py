"""A run written to disk: one folder per run, one file per table and rank.

While a rank runs it appends to journals (`collectives.rank00003.arrows`); when it closes they
become Parquet. `run.rank00003.json` says what the rank knows of the run and whether it closed. A
rank killed at any moment leaves every finished step readable.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shardtoll.ledger.disk.journal import CutJournal, Journal
from shardtoll.ledger.disk.provisional_file import packed
from shardtoll.ledger.disk.run_files import (
    OURS,
    STORE_VERSION,
    clear,
    file_name,
    provisional_path,
    write_whole,
)
from shardtoll.ledger.disk.run_reader import finished_only, run_id_of
from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.ledger.records.errors import RunFolderError
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Run
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.parquet import to_parquet
from shardtoll.ledger.tables.tables import DRY, SCHEMAS, empty_table

_WRITE_ORDER: Final = (
    *("collectives", "computes", "counts", "notices", "leadups", "stalls", "values", "parameters"),
    "device_ops",
    "events",
    "steps",
)
"""`steps` last: a step whose row is there has all its other rows."""


class UnfinishedFolder(RunFolderError):
    """A rank's files were removed, moved or changed; `ledger` is all that could be read back of them."""

    def __init__(self, folder: Path, error: OSError, ledger: Ledger) -> None:
        super().__init__(
            f"run folder {folder} cannot be finished ({error.strerror or error})",
            "give each job a folder of its own and leave it alone while the job runs",
        )
        self.ledger = ledger


class RankWriter:
    """Writes one rank's part of a run; every `append` is safe against a kill right after it."""

    def __init__(self, folder: Path, rank: int, run_id: str) -> None:
        """Open the rank's files in `folder`, which is made if it is missing.

        `run_id` is the same on all ranks of a run and differs between runs. Raises RunFolderError
        when the folder cannot be made or written.
        """
        self.folder = folder
        self.rank = rank
        self._run_id = run_id
        self._journals: dict[str, Journal] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            # ValueError: the name has a NUL, or characters that this locale cannot write.
            why = getattr(error, "strerror", None) or error
            raise RunFolderError(
                f"run folder {folder} cannot be made ({why})", "name another with out="
            ) from error
        try:
            clear(folder, rank)
            for table in (name for name in SCHEMAS if name not in DRY):
                # A journal lives as long as the writer; close() or abandon() closes it.
                self._journals[table] = Journal(
                    table, (folder / file_name(table, rank, "arrows")).open("w+b")
                )
        except OSError as error:
            self.abandon()
            raise RunFolderError(
                f"run folder {folder} cannot be written ({error.strerror or error})", "name another with out="
            ) from error

    def describe(
        self, run: Run, groups: Sequence[Group], findings: Sequence[Finding] = (), *, closed: bool = False
    ) -> None:
        """Write the facts about the run itself; may be called again as more becomes known."""
        meta = rank_meta(run, groups, findings, run_id=self._run_id, closed=closed)
        write_whole(
            self.folder / file_name("run", self.rank, "json"), json.dumps(meta, allow_nan=False).encode()
        )

    def append(self, *rows: StepRows) -> None:
        """Append the rows of one step or of several in their order, or those from outside every step."""
        for table in _WRITE_ORDER:
            if table == "steps":
                self._journals[table].append(each.step for each in rows if each.step is not None)
            else:
                self._journals[table].append(chain.from_iterable(getattr(each, table) for each in rows))

    def append_batches(self, rows: Mapping[str, pa.RecordBatch]) -> None:
        """Append whole batches, by table; `steps` is written last, whichever its place."""
        for table in _WRITE_ORDER:
            if table in rows:
                self._journals[table].append_batch(rows[table])

    def provisional(self, made: Iterable[Mapping[str, pa.RecordBatch] | StepRows]) -> None:
        """Keep rows that are to be appended later, for the case of a kill before; replaces those of before.

        Any thread may call it. Raises OSError if they cannot be written.
        """
        write_whole(provisional_path(self.folder, self.rank), packed(made, self._run_id))

    def close(
        self, run: Run, groups: Sequence[Group], findings: Sequence[Finding] = (), *, keep: bool = True
    ) -> Ledger:
        """Turn the journals into Parquet, mark the rank closed and return its ledger.

        `keep` False: the folder goes with the session, and nothing more is written to it.
        Raises UnfinishedFolder, which has the ledger, when files were removed or changed meanwhile, or the
        disk is full.
        """
        tables = {table: empty_table(table) for table in DRY}
        trouble: OSError | None = None
        for table, journal in self._journals.items():
            try:
                tables[table] = journal.finish()
            except CutJournal as error:
                trouble, tables[table] = error, error.rows
            except OSError as error:
                trouble, tables[table] = error, empty_table(table)
        ledger = Ledger(run, tuple(groups), finished_only(tables) if trouble else tables, tuple(findings))
        try:
            if trouble is not None:
                raise trouble
            if keep:
                self._finish(ledger)
        except OSError as error:
            self.abandon()
            raise UnfinishedFolder(self.folder, error, ledger) from error
        finally:
            # Its traceback holds this frame and the callers': a circle that would keep their variables.
            trouble = None
        return ledger

    def _finish(self, ledger: Ledger) -> None:
        """Replace the journals by Parquet files of their rows. Raises OSError if they cannot be written."""
        for table in self._journals:
            _write_parquet(self.folder / file_name(table, self.rank, "parquet"), ledger.tables[table])
            (self.folder / file_name(table, self.rank, "arrows")).unlink()
        self.describe(ledger.run, ledger.groups, ledger.findings, closed=True)
        # Nobody reads it of a rank that closed.
        with contextlib.suppress(OSError):
            provisional_path(self.folder, self.rank).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the files as they are; the rank then reads as one that died. Safe to call twice."""
        for journal in self._journals.values():
            journal.abandon()


def rank_meta(
    run: Run, groups: Sequence[Group], findings: Sequence[Finding], *, run_id: str, closed: bool
) -> dict[str, Any]:
    """Return what `run.rankN.json` holds."""
    return {
        "store_version": STORE_VERSION,
        "run_id": run_id,
        "closed": closed,
        "run": to_plain(run),
        "groups": to_plain(groups),
        "findings": to_plain(findings),
    }


def _write_parquet(path: Path, table: pa.Table) -> None:
    write_whole(path, to_parquet(table).to_pybytes())


def rewrite_tables(folder: Path, before: Ledger, after: Ledger) -> None:
    """Write those tables of a closed rank that differ; each file is the old one or the new one, never a part.

    Raises OSError if a file cannot be written.
    """
    (rank,) = after.run.ranks_seen
    for table, data in after.tables.items():
        if data is not before.tables[table]:
            _write_parquet(folder / file_name(table, rank, "parquet"), data)


def write_rank(folder: Path, ledger: Ledger, run_id: str) -> None:
    """Write another rank's ledger, gathered over the network, unless that rank's own files are here.

    Files that an earlier run left for that rank are replaced.
    """
    (rank,) = ledger.run.ranks_seen
    path = folder / file_name("run", rank, "json")
    if path.exists() and run_id_of(folder, rank) == run_id:
        return
    clear(folder, rank)
    for table, data in ledger.tables.items():
        if data.num_rows or table not in DRY:
            _write_parquet(folder / file_name(table, rank, "parquet"), data)
    meta = rank_meta(ledger.run, ledger.groups, ledger.findings, run_id=run_id, closed=True)
    write_whole(path, json.dumps(meta, allow_nan=False).encode())


def replace_ranks(folder: Path, ledgers: Sequence[Ledger], run_id: str) -> None:
    """Write the tables of ranks that closed in place of those in the folder, which go once all are written.

    Other files stay: nobody writes a trace, or the files a hang left, a second time. Files of other ranks
    stay too: those may still append to them. Raises OSError if the ledgers cannot be written; the folder is
    then as it was.
    """
    with tempfile.TemporaryDirectory(prefix=".anew-", dir=folder) as aside:
        for ledger in ledgers:
            write_rank(Path(aside), ledger, run_id)
        # The file that marks a rank as closed is renamed after its tables: until then they read as before.
        names = sorted(
            (path.name for path in Path(aside).iterdir()), key=lambda name: name.startswith("run.")
        )
        for name in names:
            os.replace(Path(aside) / name, folder / name)
    replaced = {ledger.run.ranks_seen[0] for ledger in ledgers}
    for path in folder.iterdir():
        ours = OURS.match(path.name)
        before = ours is not None and ours.group(1) != "trace" and int(ours.group(2)) in replaced
        if before and path.name not in names:
            path.unlink(missing_ok=True)
