"""A run read from disk. A rank killed at any moment has left every finished step readable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.disk.journal import read_journal
from shardtoll.ledger.disk.provisional_file import unpacked, with_provisional
from shardtoll.ledger.disk.run_files import STORE_VERSION, file_name, meta_path, provisional_path, ranks_in
from shardtoll.ledger.foreign.plain import from_plain
from shardtoll.ledger.foreign.regular import check_regular, read_regular
from shardtoll.ledger.records.errors import RunFolderError, SchemaError, first_line
from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Notice, Run
from shardtoll.ledger.tables.ledger import Ledger, merge
from shardtoll.ledger.tables.parquet import from_parquet
from shardtoll.ledger.tables.tables import DRY, LATER, SCHEMAS, completed, empty_table, to_table
from shardtoll.ledger.tables.validated import validated

_META_MOST_BYTES: Final = 256_000_000
"""Bytes of a `run.rankN.json` that is read: 1,000 groups of 1,000 ranks take 5 MB."""
_PROVISIONAL_MOST_BYTES: Final = 1_000_000_000
"""Bytes of a `provisional.rankN.arrows` that is read: rows of a quarter second."""
_AGAIN: Final = "run the job again, or remove that rank's files to report the others"


def ranks_left(folder: Path, run_id: str, but: Collection[int]) -> list[Ledger]:
    """Return the ledgers that ranks of a run left in the folder, without some ranks; none that cannot be
    read."""
    left = []
    for rank in ranks_in(folder) if folder.is_dir() else ():
        if rank not in but and run_id_of(folder, rank) == run_id:
            with contextlib.suppress(RunFolderError, SchemaError):
                left.append(read_rank(folder, rank))
    return left


def read_table(folder: Path, table: str, rank: int, *, closed: bool) -> pa.Table:
    """Return one table of a rank as it lies on disk, the rows of an unfinished step with it.

    Raises RunFolderError if it is missing or cannot be read.
    """
    path = folder / file_name(table, rank, "parquet")
    try:
        if table in DRY and not path.exists():
            return empty_table(table)
        if not closed and not path.exists():
            path = folder / file_name(table, rank, "arrows")
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


def run_id_of(folder: Path, rank: int) -> str | None:
    """The run that a rank's files belong to; None if they do not say."""
    try:
        meta = _read_json(meta_path(folder, rank))
        return str(meta["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_json(path: Path) -> Any:
    return json.loads(read_regular(path, _META_MOST_BYTES))


def read_meta(path: Path) -> dict[str, Any]:
    """Return what `run.rankN.json` holds; RunFolderError or SchemaError if it cannot be read."""
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

    Raises RunFolderError or SchemaError if a file cannot be read.
    """
    head = known_of(folder, rank)
    tables = {table: read_table(folder, table, rank, closed=head.closed) for table in SCHEMAS}
    return rank_ledger(head, tables if head.closed else ended_early(folder, head, finished_only(tables)))


@dataclass(frozen=True, slots=True)
class Known:
    """A rank's facts about the run, apart from its tables."""

    run_id: str | None
    closed: bool
    run: Run
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]


def known_of(folder: Path, rank: int) -> Known:
    """Return a rank's facts about the run; RunFolderError or SchemaError if that cannot be read."""
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
        # The machine may have ended too: a file that was written for good is whole all the same.
        return {}, f"{path.name} is damaged or cut short, and not counted ({first_line(error)})"


def rank_ledger(head: Known, tables: Mapping[str, pa.Table]) -> Ledger:
    """Return the ledger of one rank."""
    try:
        return Ledger(head.run, head.groups, tables, head.findings)
    except ValueError as error:
        (rank,) = head.run.ranks_seen
        raise RunFolderError(f"the files of rank {rank} are damaged ({first_line(error)})", _AGAIN) from error


def one_run(parts: Sequence[Ledger], run_ids: Collection[str | None], folder: Path) -> Ledger:
    """Return the ledger of all ranks; RunFolderError if they are of several runs."""
    try:
        if len(set(run_ids)) > 1:
            raise ValueError(f"{len(set(run_ids))} run ids")
        return merge(parts)
    except ValueError as error:
        raise RunFolderError(
            f"{folder} mixes files of several runs ({error})",
            "write each run to a folder of its own, and empty this one before it is used again",
        ) from error


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
    return one_run(parts, {run_id_of(folder, rank) for rank in ranks}, folder)
