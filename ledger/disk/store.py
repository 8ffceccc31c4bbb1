"""A run on disk: one folder a run, one file a table and rank.

While a rank runs it appends to journals (`collectives.rank00003.arrows`); when it closes they
become Parquet. `run.rank00003.json` says what the rank knows of the run and whether it closed. A
rank killed at any moment leaves every finished step readable.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.disk.journal import CutJournal, Journal, read_journal
from shardtoll.ledger.disk.provisional import packed, unpacked, with_provisional
from shardtoll.ledger.foreign.plain import from_plain, to_plain
from shardtoll.ledger.foreign.regular import check_regular, read_regular
from shardtoll.ledger.records.errors import RunFolderError, SchemaError, first_line
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Notice, Run
from shardtoll.ledger.records.step_rows import StepRows
from shardtoll.ledger.tables.ledger import Ledger, merge
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from shardtoll.ledger.tables.tables import DRY, LATER, SCHEMAS, completed, empty_table, to_table
from shardtoll.ledger.tables.validated import validated

STORE_VERSION: Final = 1
_META_MOST_BYTES: Final = 256_000_000
"""Bytes of a `run.rankN.json` that is read: 1,000 groups of 1,000 ranks take 5 MB."""
_PROVISIONAL_MOST_BYTES: Final = 1_000_000_000
"""Bytes of a `provisional.rankN.arrows` that is read: rows of a quarter second."""
_OURS = re.compile(
    rf"^(run|trace|{'|'.join(SCHEMAS)})\.rank(\d{{5,}})\.(json|json\.gz|arrows|parquet)(\.part)?$"
)
_BESIDE = re.compile(
    r"^(flight|stacks|recorder|provisional)\.rank(\d{5,})\.(bin|txt|pickle|arrows)(\.part)?$"
)
"""Files that say what a rank was doing when it hung or was killed; no part of a closed run's tables."""
_AGAIN: Final = "run the job again, or remove that rank's files to report the others"
_WRITE_ORDER: Final = (
    *("collectives", "computes", "counts", "notices", "leadups", "stalls", "values", "parameters"),
    "device_ops",
    "events",
    "steps",
)
"""`steps` last: a step whose row is there has all its other rows."""


def _name(stem: str, rank: int, suffix: str) -> str:
    return f"{stem}.rank{rank:05d}.{suffix}"


def _write_whole(path: Path, data: bytes) -> None:
    """Write so that a reader sees the old file or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


def clear(folder: Path, rank: int | None = None) -> None:
    """Remove an earlier run's files from the folder: all of ours, or those of one rank."""
    for path in folder.iterdir() if folder.is_dir() else ():
        ours = _OURS.match(path.name) or _BESIDE.match(path.name)
        if ours and (rank is None or int(ours.group(2)) == rank):
            path.unlink(missing_ok=True)


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
        """Open the rank's files in `folder`, which is made where it is missing.

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
                self._journals[table] = Journal(table, (folder / _name(table, rank, "arrows")).open("w+b"))
        except OSError as error:
            self.abandon()
            raise RunFolderError(
                f"run folder {folder} cannot be written ({error.strerror or error})", "name another with out="
            ) from error

    def describe(
        self, run: Run, groups: Sequence[Group], findings: Sequence[Finding] = (), *, closed: bool = False
    ) -> None:
        """Write what is known of the run itself; may be called again as more becomes known."""
        meta = rank_meta(run, groups, findings, run_id=self._run_id, closed=closed)
        _write_whole(
            self.folder / _name("run", self.rank, "json"), json.dumps(meta, allow_nan=False).encode()
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

        Any thread may call it. Raises OSError where they cannot be written.
        """
        _write_whole(provisional_path(self.folder, self.rank), packed(made, self._run_id))

    def close(self, run: Run, groups: Sequence[Group], findings: Sequence[Finding] = ()) -> Ledger:
        """Turn the journals into Parquet, mark the rank closed and return its ledger.

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
            for table in self._journals:
                _write_parquet(self.folder / _name(table, self.rank, "parquet"), tables[table])
                (self.folder / _name(table, self.rank, "arrows")).unlink()
            self.describe(run, groups, findings, closed=True)
            # Nobody reads it of a rank that closed.
            with contextlib.suppress(OSError):
                provisional_path(self.folder, self.rank).unlink(missing_ok=True)
        except OSError as error:
            self.abandon()
            raise UnfinishedFolder(self.folder, error, ledger) from error
        finally:
            # Its traceback holds this frame and the callers': a circle that would keep their variables.
            trouble = None
        return ledger

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
    _write_whole(path, to_parquet(table).to_pybytes())


def flight_path(folder: Path, rank: int) -> Path:
    """Return where a rank says what it is doing while its audit is open."""
    return folder / _name("flight", rank, "bin")


def stacks_path(folder: Path, rank: int) -> Path:
    """Return where a rank's watchdog writes the stacks of all threads once it hangs."""
    return folder / _name("stacks", rank, "txt")


def recorder_path(folder: Path, rank: int) -> Path:
    """Return where a rank's watchdog writes torch's flight recorder once it hangs."""
    return folder / _name("recorder", rank, "pickle")


def provisional_path(folder: Path, rank: int) -> Path:
    """Return where a rank keeps rows of watched steps that it has yet to append to its journals."""
    return folder / _name("provisional", rank, "arrows")


def flights_in(folder: Path) -> list[int]:
    """Return the ranks that left a flight file in the folder, ascending."""
    matches = (_BESIDE.match(path.name) for path in folder.iterdir())
    return sorted({int(match.group(2)) for match in matches if match and match.group(1) == "flight"})


def trace_path(folder: Path, rank: int) -> Path:
    """Return where a rank's Kineto trace lies in a run folder, whether it is there or not."""
    return folder / _name("trace", rank, "json.gz")


def rewrite_tables(folder: Path, before: Ledger, after: Ledger) -> None:
    """Write those tables of a closed rank that differ; each file is the old one or the new one, never a part.

    Raises OSError where a file cannot be written.
    """
    (rank,) = after.run.ranks_seen
    for table, data in after.tables.items():
        if data is not before.tables[table]:
            _write_parquet(folder / _name(table, rank, "parquet"), data)


def write_rank(folder: Path, ledger: Ledger, run_id: str) -> None:
    """Write another rank's ledger, gathered over the network, unless that rank's own files are here.

    Files that an earlier run left for that rank are replaced.
    """
    (rank,) = ledger.run.ranks_seen
    path = folder / _name("run", rank, "json")
    if path.exists() and _run_id(folder, rank) == run_id:
        return
    clear(folder, rank)
    for table, data in ledger.tables.items():
        if data.num_rows or table not in DRY:
            _write_parquet(folder / _name(table, rank, "parquet"), data)
    meta = rank_meta(ledger.run, ledger.groups, ledger.findings, run_id=run_id, closed=True)
    _write_whole(path, json.dumps(meta, allow_nan=False).encode())


def replace_ranks(folder: Path, ledgers: Sequence[Ledger], run_id: str) -> None:
    """Write the tables of ranks that closed in place of those in the folder, which go once all are written.

    What lies beside the tables stays: nobody writes a trace, or what a hang left, a second time. Files of
    other ranks stay too: those may still append to them. Raises OSError where the ledgers cannot be written;
    the folder is then as it was.
    """
    with tempfile.TemporaryDirectory(prefix=".anew-", dir=folder) as aside:
        for ledger in ledgers:
            write_rank(Path(aside), ledger, run_id)
        # What says that a rank closed comes after its tables: until then they read as they were.
        names = sorted(
            (path.name for path in Path(aside).iterdir()), key=lambda name: name.startswith("run.")
        )
        for name in names:
            os.replace(Path(aside) / name, folder / name)
    replaced = {ledger.run.ranks_seen[0] for ledger in ledgers}
    for path in folder.iterdir():
        ours = _OURS.match(path.name)
        before = ours is not None and ours.group(1) != "trace" and int(ours.group(2)) in replaced
        if before and path.name not in names:
            path.unlink(missing_ok=True)


def ranks_left(folder: Path, run_id: str, but: Collection[int]) -> list[Ledger]:
    """Return what ranks of a run left in the folder, but for some ranks; none that cannot be read."""
    left = []
    for rank in ranks_in(folder) if folder.is_dir() else ():
        if rank not in but and _run_id(folder, rank) == run_id:
            with contextlib.suppress(RunFolderError, SchemaError):
                left.append(read_rank(folder, rank))
    return left


def table_path(folder: Path, table: str, rank: int, *, closed: bool) -> Path:
    """Return where a rank's table lies: Parquet once the rank closed, before that its journal."""
    return folder / _name(table, rank, "parquet" if closed else "arrows")


def meta_path(folder: Path, rank: int) -> Path:
    """Return where a rank says what it knows of the run."""
    return folder / _name("run", rank, "json")


def read_table(folder: Path, table: str, rank: int, *, closed: bool) -> pa.Table:
    """Return one table of a rank as it lies on disk, the rows of an unfinished step with it.

    Raises RunFolderError where it is missing or cannot be read.
    """
    path = folder / _name(table, rank, "parquet")
    try:
        if table in DRY and not path.exists():
            return empty_table(table)
        if not closed and not path.exists():
            path = folder / _name(table, rank, "arrows")
            check_regular(path)
            return validated(table, read_journal(table, path))
        if closed and table in LATER and not path.exists():
            return empty_table(table)
        check_regular(path)
        return validated(table, completed(table, from_parquet(path)))
    except FileNotFoundError as error:
        raise RunFolderError(f"{path} is missing", _AGAIN) from error
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise RunFolderError(f"{path} is damaged or cut short ({first_line(error)})", _AGAIN) from error


def finished_only(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Drop the rows of a step that did not finish: its row in `steps` is missing."""
    finished = tables["steps"].column("step").combine_chunks()
    kept = {}
    for name, table in tables.items():
        if "step" not in table.column_names:
            kept[name] = table
            continue
        step = table.column("step")
        kept[name] = table.filter(pc.or_(pc.is_null(step), pc.is_in(step, value_set=finished)))
    return kept


def _run_id(folder: Path, rank: int) -> str | None:
    """The run that a rank's files belong to; None where they do not say."""
    try:
        meta = _read_json(meta_path(folder, rank))
        return str(meta["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_json(path: Path) -> Any:
    return json.loads(read_regular(path, _META_MOST_BYTES))


def read_meta(path: Path) -> dict[str, Any]:
    """Return what `run.rankN.json` holds; RunFolderError or SchemaError where it cannot be read."""
    try:
        meta = _read_json(path)
        version = meta["store_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({first_line(error)})", _AGAIN) from error
    if version != STORE_VERSION:
        raise SchemaError(
            f"{path} has store version {version}, this shardtoll reads {STORE_VERSION}",
            "upgrade shardtoll, or run the job again with this version",
        )
    return dict(meta)


def read_rank(folder: Path, rank: int) -> Ledger:
    """Return one rank's ledger. A rank that died is read up to its last finished step, with a notice.

    Raises RunFolderError or SchemaError where a file cannot be read.
    """
    head = known_of(folder, rank)
    tables = {table: read_table(folder, table, rank, closed=head.closed) for table in SCHEMAS}
    return rank_ledger(head, tables if head.closed else ended_early(folder, head, finished_only(tables)))


@dataclass(frozen=True, slots=True)
class Known:
    """What a rank says of the run beside its tables."""

    run_id: str | None
    closed: bool
    run: Run
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]


def known_of(folder: Path, rank: int) -> Known:
    """Return what a rank says of the run; RunFolderError or SchemaError where that cannot be read."""
    path = meta_path(folder, rank)
    meta = read_meta(path)
    try:
        return Known(
            run_id=str(meta["run_id"]) if "run_id" in meta else None,
            closed=bool(meta["closed"]),
            run=replace(from_plain(Run, meta["run"]), ranks_seen=(rank,)),
            groups=from_plain(tuple[Group, ...], meta["groups"]),
            findings=from_plain(tuple[Finding, ...], meta["findings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged ({first_line(error)})", _AGAIN) from error


def ended_early(folder: Path, head: Known, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of a rank that never closed with its provisional rows, and notices that say so.

    `tables`: the rows of finished steps. Provisional ones that are damaged count as none: a notice says so.
    """
    (rank,) = head.run.ranks_seen
    provisional, trouble = _provisional(folder, rank, head.run_id)
    tables, later = with_provisional(tables, provisional)
    steps = tables["steps"].num_rows
    text = f"rank {rank} ended before its session closed; finished steps counted: {steps}"
    notices = [Notice(rank, "rank-incomplete", text)]
    if later:
        text = (
            f"rank {rank} ended before the rows of its last {later} steps were complete: start and duration "
            "of their collectives are unknown"
        )
        notices.append(Notice(rank, "times-unknown", text))
    if trouble is not None:
        notices.append(Notice(rank, "rank-incomplete", trouble))
    return {**tables, "notices": pa.concat_tables([tables["notices"], to_table("notices", notices)])}


def _provisional(folder: Path, rank: int, run_id: str | None) -> tuple[dict[str, pa.Table], str | None]:
    """Return the provisional tables, and what is wrong with their file."""
    path = provisional_path(folder, rank)
    try:
        return unpacked(read_regular(path, _PROVISIONAL_MOST_BYTES), run_id), None
    except FileNotFoundError:
        return {}, None
    except (pa.ArrowException, KeyError, ValueError, OSError, RecursionError) as error:
        # The machine may have ended too: what was written for good is whole all the same.
        return {}, f"{path.name} is damaged or cut short, and not counted ({first_line(error)})"


def rank_ledger(head: Known, tables: Mapping[str, pa.Table]) -> Ledger:
    """Return the ledger of one rank."""
    try:
        return Ledger(head.run, head.groups, tables, head.findings)
    except ValueError as error:
        (rank,) = head.run.ranks_seen
        raise RunFolderError(f"the files of rank {rank} are damaged ({first_line(error)})", _AGAIN) from error


def one_run(parts: Sequence[Ledger], run_ids: Collection[str | None], folder: Path) -> Ledger:
    """Return the ledger of all ranks; RunFolderError where they are of several runs."""
    try:
        if len(set(run_ids)) > 1:
            raise ValueError(f"{len(set(run_ids))} run ids")
        return merge(parts)
    except ValueError as error:
        raise RunFolderError(
            f"{folder} mixes files of several runs ({error})",
            "write each run to a folder of its own, and empty this one before it is used again",
        ) from error


def rank_of(name: str) -> int | None:
    """Return the rank that a file in a run folder belongs to by its name; None where it is none of ours."""
    ours = _OURS.match(name)
    return int(ours.group(2)) if ours else None


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that left files in the folder, ascending."""
    matches = (_OURS.match(path.name) for path in folder.iterdir())
    return sorted({int(match.group(2)) for match in matches if match and match.group(1) == "run"})


def is_run_folder(path: Path) -> bool:
    """Whether the path is a folder with at least one rank of a run in it."""
    return path.is_dir() and bool(ranks_in(path))


def read_run(folder: Path) -> Ledger:
    """Return the ledger of all ranks found in a run folder.

    Raises RunFolderError when there is none or a file is damaged, SchemaError when one is newer.
    """
    if not folder.is_dir():
        raise RunFolderError(f"no run folder at {folder}", "name the folder given as out= to audit()")
    ranks = ranks_in(folder)
    if not ranks:
        raise RunFolderError(f"{folder} holds no shardtoll run", "name the folder given as out= to audit()")
    parts = [read_rank(folder, rank) for rank in ranks]
    return one_run(parts, {_run_id(folder, rank) for rank in ranks}, folder)
