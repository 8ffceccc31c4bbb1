"""Tables as Parquet. pyarrow's reader and writer load at the first call: reports of traces need neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa

from shardtoll.ledger.tables.validated import sound

_MOST_ROWS: Final = 200_000_000
"""Rows of a table that is read: a few bytes can claim any number of equal ones."""
_MOST_BYTES: Final = 16 << 30
"""Bytes of a table that is read, unpacked, by what the file says of itself."""
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
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if not (0 <= about.num_rows <= _MOST_ROWS and 0 <= unpacked <= _MOST_BYTES):
            raise ValueError(f"claims {about.num_rows:,} rows of {unpacked:,} bytes")
        return sound(file.read(use_threads=False))
