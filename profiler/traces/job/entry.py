"""One trace's result, as one file: a zip of a JSON head and one Parquet file per table.

Nothing in the zip is packed: the tables are packed already. Its checksums reveal a damaged file.
"""

from __future__ import annotations

import io
import os
import secrets
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from shardtoll.ledger.records.finding import Finding
from shardtoll.ledger.records.record import Group, Run
from shardtoll.ledger.tables.ledger import Ledger
from shardtoll.ledger.tables.parquet import from_parquet
from shardtoll.ledger.tables.tables import SCHEMAS, to_table
from shardtoll.profiler.traces.rank.worlds import Unsized

SUFFIX: Final = ".rank.zip"
_HEAD: Final = "rank.json"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a trace apart from its ledger."""

    address: str
    """The file as the user would name it."""
    world_size: int | None
    """As the trace says; the ledger's own is a guess if this is None."""
    start_ns: int
    """First instant recorded, on the trace's clock."""
    end_ns: int
    events: int
    """Events in the file."""
    parts: int = 1
    """Devices in the file that are ranks of their own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank, read and counted."""

    facts: Facts
    ledger: Ledger
    unsized: Unsized | None = None
    """For a trace that does not state the number of ranks: the facts that follow from it."""

    @property
    def rank(self) -> int:
        """The rank whose trace it was."""
        return self.ledger.run.ranks_seen[0]


class _Head(msgspec.Struct):
    facts: Facts
    run: Run
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    rows: dict[str, int]
    unsized: Unsized | None


def write(path: Path, entry: Entry) -> None:
    """Write the entry so that a reader sees all of it or nothing. Raises OSError."""
    import pyarrow.parquet as pq

    ledger = entry.ledger
    head = _Head(
        facts=entry.facts,
        run=ledger.run,
        groups=ledger.groups,
        findings=ledger.findings,
        rows={name: ledger.tables[name].num_rows for name in SCHEMAS},
        unsized=entry.unsized,
    )
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr(_HEAD, msgspec.json.encode(head))
        for name, rows in head.rows.items():
            if rows:
                sink = pa.BufferOutputStream()
                pq.write_table(ledger.tables[name], sink, compression="zstd", write_statistics=False)
                packed.writestr(f"{name}.parquet", sink.getvalue().to_pybytes())
    write_whole(path, whole.getvalue())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing. Raises OSError."""
    # A name of its own: two reports may write the same entry at the same time.
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Entry:
    """Return the entry. Raises OSError if there is none, ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(path) as packed:
            if any(item.compress_type != zipfile.ZIP_STORED for item in packed.infolist()):
                raise ValueError(f"{path} was not written by shardtoll")
            head = msgspec.json.decode(packed.read(_HEAD), type=_Head)
            tables = {name: _table(packed, name, head.rows[name]) for name in SCHEMAS}
        if len(head.run.ranks_seen) != 1:
            raise ValueError(f"{path} holds {len(head.run.ranks_seen)} ranks")
        ledger = Ledger(head.run, head.groups, tables, head.findings)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        TypeError,
        NotImplementedError,
        RuntimeError,
        msgspec.MsgspecError,
        pa.ArrowException,
    ) as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    return Entry(head.facts, ledger, head.unsized)


def _table(packed: zipfile.ZipFile, name: str, rows: int) -> pa.Table:
    if rows == 0:
        return to_table(name, ())
    table = from_parquet(pa.py_buffer(packed.read(f"{name}.parquet")))
    if table.num_rows != rows:
        raise ValueError(f"{name} has {table.num_rows} rows where {rows} were written")
    return table
