"""An append-only file of one table that is readable however its writer died.

Arrow's stream format needs no footer: whole batches before the cut can always be read back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from shardtoll.ledger.tables import SCHEMAS, check, to_batch


class Journal:
    """Writes batches of one table; each is with the kernel before `append` returns."""

    def __init__(self, table: str, file: IO[bytes]) -> None:
        self._table = table
        self._file = file
        self.rows = 0
        """Rows written so far."""
        # Steps repeat each other: a fifth of the bytes, and quicker than writing them all.
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._stream = pa.ipc.new_stream(file, SCHEMAS[table], options=options)
        file.flush()

    def append(self, records: Iterable[Any]) -> None:
        """Write the records as one batch; nothing is written for none."""
        rows = tuple(records)
        if rows:
            self._write(to_batch(self._table, rows))

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows made elsewhere; ValueError where they do not fit the table."""
        check(self._table, batch)
        self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._stream.write_batch(batch)
            self._file.flush()
            self.rows += batch.num_rows

    def close(self) -> None:
        """End the stream and close the file."""
        self._stream.close()
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is, without the stream's end."""
        self._file.close()


def read_journal(table: str, path: Path) -> pa.Table:
    """Return the whole batches of a journal; a cut or empty file gives the rows before the cut.

    Raises FileNotFoundError when there is no such file, ValueError when it holds another schema.
    """
    schema = SCHEMAS[table]
    batches: list[pa.RecordBatch] = []
    with pa.OSFile(str(path), "rb") as file:
        try:
            stream = pa.ipc.open_stream(file)
            found = stream.schema
        except (pa.ArrowException, OSError):
            return schema.empty_table()
        if not found.equals(schema):
            raise ValueError(f"{path} holds other columns than this shardtoll's {table}")
        try:
            for batch in stream:
                batches.append(batch)
        except (pa.ArrowException, OSError):
            # The tail is cut where the writer died; what came before it is whole.
            pass
    return pa.Table.from_batches(batches, schema=schema)
