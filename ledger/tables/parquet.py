"""Tables as Parquet. pyarrow's reader and writer load at the first call: reports of traces need neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger.tables.validated import sound

_MOST_ROWS: Final = 200_000_000
"""Rows of a table that is read: a few bytes can claim any number of equal ones."""
_MOST_BYTES: Final = 16 << 30
"""Bytes of a table that is read, unpacked, by what the file says of itself."""
_ROWS_FREE: Final = 100_000
_ROWS_A_BYTE: Final = 1
"""Beyond the free ones so many rows for each byte of the file: real tables have a third of one at most."""
_TEXT_FREE: Final = 256 << 20
_TEXT_A_BYTE: Final = 1_000
"""Beyond the free ones so many bytes of text for each byte of the file: real tables have fifty."""
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
        about, size = file.metadata, opened.size()
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        most = min(_MOST_ROWS, _ROWS_FREE + _ROWS_A_BYTE * size)
        if not (0 <= about.num_rows <= most and 0 <= unpacked <= _MOST_BYTES):
            raise ValueError(f"claims {about.num_rows:,} rows of {unpacked:,} bytes in {size:,}")
        schema = file.schema_arrow
        if not about.num_rows:
            # Most tables of most runs; opened again they would cost twice as much.
            return sound(file.read(use_threads=False))
        texts = [item.name for item in schema if _is_text(item.type)]
        # One text that many rows share is there once, until it is known how long all are together.
        with pq.ParquetFile(opened, metadata=about, read_dictionary=texts) as again:
            table = sound(again.read(use_threads=False))
    together = sum(_text_bytes(chunk) for name in texts for chunk in table[name].chunks)
    if together > _TEXT_FREE + _TEXT_A_BYTE * size:
        raise ValueError(f"holds {together:,} bytes of text in {size:,}")
    return table.cast(schema)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text_bytes(chunk: pa.Array) -> int:
    """Return how many bytes the texts of all rows have together."""
    if not isinstance(chunk, pa.DictionaryArray):
        return int(pc.sum(pc.binary_length(chunk)).as_py() or 0)
    lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
    return int(pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0)
