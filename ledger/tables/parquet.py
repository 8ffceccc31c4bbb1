"""Tables as Parquet. pyarrow's reader and writer load at the first call: reports of traces need neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.tables.tables import SCHEMAS
from shardtoll.ledger.tables.validated import sound

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MOST_ROWS: Final = 200_000_000
"""Rows of a table that is read: a few bytes can claim any number of equal ones."""
_MOST_BYTES: Final = 16 << 30
"""Bytes in memory of a table that is read, without its texts."""
_MOST_TEXT_BYTES: Final = 4 << 30
"""Bytes of its texts."""
_FREE_BYTES: Final = 1 << 30
_TIMES_PACKED: Final = 500
"""Beyond the free ones a table may take so many times the bytes of its file. Regular rows of a long run pack
to half a byte each."""
_CELL_BYTES: Final = 8
_MOST_COLUMNS: Final = 200
"""Columns of a file: three times those of our largest table."""
_KINDS: Final = frozenset(item.type for schema in SCHEMAS.values() for item in schema)
"""Types of columns. Lists, structs and binary columns unpack to any size, and no table has one."""
_WORTH_PACKING_BYTES: Final = 100_000
"""Smaller tables become no smaller packed, and take three times as long to write and to read."""


def to_parquet(table: pa.Table) -> pa.Buffer:
    """Return the table as a Parquet file's bytes, packed if it is large enough to become smaller."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd" if table.nbytes >= _WORTH_PACKING_BYTES else "none")
    return sink.getvalue()


def from_parquet(source: Path | pa.Buffer) -> pa.Table:
    """Return the table of a Parquet file, or of its bytes; an Arrow error or ValueError if damaged."""
    import pyarrow.parquet as pq

    # As bytes: a path need not be UTF-8.
    opened = pa.OSFile(os.fsencode(source)) if isinstance(source, Path) else pa.BufferReader(source)
    # Unlike pq.read_table, this needs no dataset machinery: a quarter of the time on small tables.
    with opened, pq.ParquetFile(opened) as file:
        about = file.metadata
        size = opened.size()
        _check_claims(about, size)
        schema = file.schema_arrow
        for item in schema:
            if item.type not in _KINDS:
                raise ValueError(f"holds a column of type {str(item.type)[:60]}")
        if not about.num_rows:
            # Most tables of most runs; opened again they would cost twice as much.
            return sound(file.read(use_threads=False))
        texts = [item.name for item in schema if _is_text(item.type)]
        # One text that many rows share is there once, until it is known how long all are together.
        with pq.ParquetFile(opened, metadata=about, read_dictionary=texts) as again:
            table = sound(again.read(use_threads=False))
    together = sum(_text_bytes(chunk) for name in texts for chunk in table[name].chunks)
    if together > min(_MOST_TEXT_BYTES, _allowed(size)):
        raise ValueError(f"holds {together:,} bytes of text")
    return table.cast(schema)


def _allowed(size: int) -> int:
    """Return how many bytes of memory a file of this size may become at most."""
    return _FREE_BYTES + _TIMES_PACKED * size


def _check_claims(about: pq.FileMetaData, size: int) -> None:
    """Raise ValueError if the table would take too much memory, by the file's own metadata."""
    if about.num_columns > _MOST_COLUMNS:
        raise ValueError(f"claims {about.num_columns:,} columns")
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    # The reader goes by the values of each column, which may be more than the rows of the file.
    cells = sum(max(group.column(i).num_values, 0) for group in groups for i in range(about.num_columns))
    most_cells = max(cells, about.num_rows * about.num_columns)
    packed = sum(max(group.total_byte_size, 0) for group in groups)
    most_bytes = min(_MOST_BYTES, _allowed(size))
    if not 0 <= about.num_rows <= _MOST_ROWS or max(most_cells * _CELL_BYTES, packed) > most_bytes:
        raise ValueError(f"claims {about.num_rows:,} rows, {most_cells:,} cells and {packed:,} bytes")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text_bytes(chunk: pa.Array) -> int:
    """Return how many bytes the texts of all rows have together."""
    if not isinstance(chunk, pa.DictionaryArray):
        return int(pc.sum(pc.binary_length(chunk)).as_py() or 0)
    lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
    return int(pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0)
