"""An append-only file of one table that is readable however its writer died.

Arrow's stream format needs no footer: whole batches before the cut can always be read back.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shardtoll.ledger.foreign.regular import check_regular
from shardtoll.ledger.tables.tables import SCHEMAS, check, empty_table, to_batch
from shardtoll.ledger.tables.validated import sound, validated

_LARGEST_BYTES: Final = 256 << 20
"""Batches are not put together beyond this; Arrow's text columns hold 2 GiB at most."""
_SMALL_CELLS: Final = 1_024
"""A batch of fewer cells is written as it is: packed it is no smaller, and takes twice as long."""
_END: Final = b"\xff\xff\xff\xff" + bytes(4)
"""End of an Arrow stream."""


class Journal:
    """Writes batches of one table; each is with the kernel before `append` returns."""

    def __init__(self, table: str, file: BufferedRandom | BufferedWriter) -> None:
        self._table = table
        self._file = file
        self._cut: tuple[int, str] | None = None
        """Why a batch could not be written whole: later batches would not be read back. Errno and text, no
        exception: its traceback would keep the callers' variables, as a model and batches."""
        self.rows = 0
        """Rows written so far."""
        self._head_bytes = file.write(SCHEMAS[table].serialize())
        file.flush()

    def append(self, records: Iterable[Any]) -> None:
        """Write the records as one batch; nothing is written for none."""
        rows = tuple(records)
        if rows:
            self._write(to_batch(self._table, rows))

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows made elsewhere; ValueError if they do not fit the table."""
        check(self._table, batch)
        self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._cut is not None:
            raise OSError(*self._cut)
        if batch.num_rows:
            try:
                self._file.write(self._message(batch))
                self._file.flush()
            except OSError as error:
                self._cut = _number_and_text(error)
                raise
            self.rows += batch.num_rows

    def _message(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Return the batch as a message of the stream, in one piece: a file of Python's is slow to call."""
        if batch.num_rows * batch.num_columns < _SMALL_CELLS:
            return batch.serialize()
        # Steps repeat each other: a fifth of the bytes, and quicker than writing them all. By this thread: to
        # hand each column to another one takes four times as long.
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        whole = sink.getvalue()
        return whole.slice(self._head_bytes, whole.size - self._head_bytes - len(_END))

    def close(self) -> None:
        """End the stream and close the file."""
        self._file.write(_END)
        self._file.close()

    def finish(self) -> pa.Table:
        """End the stream, close the file and return its rows, wherever the file's name has gone meanwhile.

        The file must have been opened for reading too. Raises CutJournal, which has the rows that are there.
        It is raised if the stream cannot be ended, as on a full disk, or if written rows are missing.
        """
        trouble = self._cut
        try:
            if trouble is None:
                try:
                    self._file.write(_END)
                    self._file.flush()
                except OSError as error:
                    trouble = _number_and_text(error)
            table = self._on_disk()
        finally:
            self.abandon()
        # More than counted, if a signal handler raised between writing and counting.
        if trouble is None and table.num_rows < self.rows:
            trouble = errno.EIO, f"{self._table} lost rows"
        if trouble is not None:
            raise CutJournal(*trouble, table)
        return table

    def _on_disk(self) -> pa.Table:
        """Return the rows in the file, without those that wait in front of a full disk."""
        raw: Any = self._file.raw
        place = raw.tell()
        raw.seek(0)
        table = _whole_batches(pa.PythonFile(raw, "r"), self._table)
        # Buffered bytes are written from here, if the disk has room by then.
        raw.seek(place)
        return table

    def abandon(self) -> None:
        """Close the file as it is, without the stream's end. Bytes that a full disk cannot hold are lost."""
        with contextlib.suppress(OSError):
            self._file.close()


class CutJournal(OSError):
    """A journal without some rows or without its end; `rows` holds what it has."""

    def __init__(self, number: int, text: str, rows: pa.Table) -> None:
        super().__init__(number, text)
        self.rows = rows


def _number_and_text(error: OSError) -> tuple[int, str]:
    return error.errno or errno.EIO, error.strerror or str(error)


class JournalTail:
    """Reads a journal that is still being written: each time only the rows appended since.

    Every message of the stream states its own length, so reading goes on after the last whole one. Half a
    message at the end is read again when it is whole.
    """

    def __init__(self, table: str, path: Path) -> None:
        self._table = table
        self._path = path
        self._read_bytes = 0
        """Bytes of whole messages read so far, the schema's first."""
        self._parts: list[pa.RecordBatch] = []

    def read(self) -> pa.Table:
        """Return all rows appended so far.

        Raises FileNotFoundError if there is no file, OSError if a pipe or device has its name, OtherColumns
        if it holds another schema. Raises ValueError if it holds values that no record would.
        """
        schema = SCHEMAS[self._table]
        check_regular(self._path)
        with pa.OSFile(os.fsencode(self._path), "rb") as file:
            if file.size() < self._read_bytes:
                # Another job's file by the same name.
                self._read_bytes, self._parts = 0, []
            file.seek(self._read_bytes)
            try:
                while True:
                    message = pa.ipc.read_message(file)
                    if message.type == "schema":
                        if not pa.ipc.read_schema(message).equals(schema):
                            raise OtherColumns(self._table, self._path)
                    else:
                        self._append(sound(pa.ipc.read_record_batch(message, schema)))
                    self._read_bytes = file.tell()
            except (pa.ArrowException, OSError, EOFError):
                # The rest is not written yet, or the stream has ended.
                pass
        return validated(self._table, pa.Table.from_batches(self._parts, schema=schema))

    def _append(self, batch: pa.RecordBatch) -> None:
        """Keep the batch; neighbours of like size become one, so that few remain however many come."""
        self._parts.append(batch)
        while len(self._parts) > 1 and self._parts[-2].num_rows <= 2 * self._parts[-1].num_rows:
            pair = pa.Table.from_batches(self._parts[-2:])
            if pair.nbytes > _LARGEST_BYTES:
                break
            self._parts[-2:] = pair.combine_chunks().to_batches()


class OtherColumns(Exception):
    """A journal that another version of shardtoll wrote; no ValueError, as Arrow's own errors are."""

    def __init__(self, table: str, path: Path) -> None:
        super().__init__(f"{path} holds other columns than this shardtoll's {table}")


def read_journal(table: str, path: Path) -> pa.Table:
    """Return the whole batches of a journal; a cut or empty file gives the rows before the cut.

    Raises FileNotFoundError when there is no such file, ValueError when it holds another schema.
    """
    with pa.OSFile(os.fsencode(path), "rb") as file:
        return _whole_batches(file, table)


def _whole_batches(file: Any, table: str) -> pa.Table:
    schema = SCHEMAS[table]
    batches: list[pa.RecordBatch] = []
    try:
        stream = pa.ipc.open_stream(file)
        written = stream.schema
    except (pa.ArrowException, OSError):
        return empty_table(table)
    if not written.equals(schema):
        raise ValueError(f"it holds other columns than this shardtoll's {table}")
    try:
        for batch in stream:
            batches.append(batch)
    except (pa.ArrowException, OSError):
        # The tail is cut where the writer died; the rows before it are whole.
        pass
    return sound(pa.Table.from_batches(batches, schema=schema))
