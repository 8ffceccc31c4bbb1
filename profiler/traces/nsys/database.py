"""An SQLite file that nobody vouches for: opened read-only, nothing in it runs, every failure is one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from shardtoll.ledger.records.errors import TraceError, first_line
from shardtoll.profiler.traces.file.sources import TraceFile, opened

EXPORT: Final = "export the report again: nsys export --type sqlite REPORT.nsys-rep"

_CHUNK_ROWS: Final = 20_000
_CELL_BYTES: Final = 16 << 20
"""A text or binary value that is longer is damage, or meant to fill the memory."""
_LIMIT_LENGTH: Final = 0
"""`SQLITE_LIMIT_LENGTH`."""
_MOST_TABLES: Final = 2_000
_FUNCTIONS: Final = frozenset(("ifnull",))
"""Functions that our queries call; a view, trigger or expression of the file's own may call nothing else."""
_PRAGMAS: Final = frozenset(("table_info", "trusted_schema", "cell_size_check", "query_only", "cache_size"))


class Database:
    """The plain tables of one file. Columns that a version does not have read as NULL."""

    def __init__(self, connection: sqlite3.Connection, where: str, size_bytes: int) -> None:
        self._connection = connection
        self._where = where
        self._size_bytes = size_bytes
        self.keys: dict[str, str] = {}
        """Column that is a table's only key: each value stands there once, and is found at once."""
        self.tables: dict[str, frozenset[str]] = {}
        """Columns of each table; views, virtual tables and computed columns are no data."""
        for (name,) in self._query(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 LIMIT ?", (_MOST_TABLES,)
        ):
            columns = self._query(f"PRAGMA table_info({_quoted(str(name))})", ()).fetchall()
            self.tables[str(name)] = frozenset(str(column[1]) for column in columns)
            keys = [str(column[1]) for column in columns if column[5]]
            if len(keys) == 1:
                self.keys[str(name)] = keys[0]

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with all of these columns."""
        return self.tables.get(table, frozenset()).issuperset(columns) and table in self.tables

    def rows(
        self, table: str, columns: Sequence[str], having: str = "", most: int | None = None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a table in chunks, in the order of the file; none if there is no such table.

        `having` follows FROM and is ours, never the file's. Raises TraceError for a damaged file.
        """
        if table not in self.tables:
            return
        there = self.tables[table]
        wanted = ", ".join(_quoted(name) if name in there else "NULL" for name in columns)
        limit = "" if most is None else f" LIMIT {most}"
        yield from self.select(f"SELECT {wanted} FROM {_quoted(table)} {having}{limit}")

    def select(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query of ours in chunks. Raises TraceError for a damaged file."""
        rows = 0
        with closing(self._query(query, ())) as cursor, self._reported():
            while chunk := cursor.fetchmany(_CHUNK_ROWS):
                rows += len(chunk)
                if rows > self._size_bytes:
                    # Pages that are their own children go on without end.
                    raise sqlite3.DatabaseError("it has more rows than bytes")
                yield chunk

    def _query(self, query: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        with self._reported():
            return self._connection.execute(query, values)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        with reported(self._where):
            yield


@contextmanager
def reported(where: str) -> Iterator[None]:
    """Turn failures of SQLite into one line."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:  # a damaged name in SQLite's own message is no text
        text = f"{where} is a damaged SQLite database ({first_line(error)})"
        raise TraceError(text, EXPORT) from error


@contextmanager
def open_database(file: TraceFile) -> Iterator[Database]:
    """Open a file's database. Raises TraceError if it is damaged or cannot be read.

    A file at an address is copied first: SQLite reads local files only.
    """
    with _local(file) as path:
        name = quote(os.fsencode(os.path.abspath(path)))
        with reported(file.address):
            connection = sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True)
        with closing(connection):
            with reported(file.address):
                _guard(connection)
            yield Database(connection, file.address, os.path.getsize(path))


@contextmanager
def _local(file: TraceFile) -> Iterator[str]:
    path = file.path or file.address
    if Path(path).exists():
        yield path
        return
    with opened(file) as source, tempfile.NamedTemporaryFile(prefix="shardtoll-", suffix=".sqlite") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        yield copy.name


def _guard(connection: sqlite3.Connection) -> None:
    """Let nothing of the file's own run, and nothing be written."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "cache_size = -8192"):
        connection.execute(f"PRAGMA {pragma}")
    # Python 3.10 has no limits; there a value is no longer than its file.
    if hasattr(connection, "setlimit"):
        connection.setlimit(_LIMIT_LENGTH, _CELL_BYTES)
    connection.set_authorizer(_allowed)


def _allowed(action: int, first: str | None, second: str | None, _db: str | None, inner: str | None) -> int:
    reads = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) and inner is None
    calls = action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    asks = action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS
    return sqlite3.SQLITE_OK if reads or calls or asks else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
