"""Tables whose offsets or text are wrong are refused in words before anything reads a value of theirs."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from shardtoll.ledger.disk.run_files import table_path
from shardtoll.ledger.disk.run_reader import read_table
from shardtoll.ledger.records.errors import RunFolderError
from shardtoll.ledger.records.record import Notice
from shardtoll.ledger.tables.tables import SCHEMAS, to_batch

OFFSETS = {"backwards": (0, 3, 1), "beyond": (0, 3, 1 << 30), "negative": (0, -5, 4)}


def write(folder: Path, text: pa.Array) -> None:
    """Write a journal of two notices with this column of text."""
    whole = to_batch("notices", [Notice(0, "a", "one"), Notice(0, "b", "two")])
    columns = [
        text if item.name == "text" else made for item, made in zip(whole.schema, whole.columns, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMAS["notices"])
    path = table_path(folder, "notices", 0, closed=False)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_offsets_that_lie_are_no_crash(offsets: tuple[int, ...], tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(struct.pack("<3i", *offsets)), pa.py_buffer(b"onetwo")]
    try:
        write(tmp_path, pa.Array.from_buffers(pa.string(), 2, buffers))
    except pa.ArrowInvalid:
        pytest.skip("this Arrow refuses to write them")
    with pytest.raises(RunFolderError, match="damaged"):
        read_table(tmp_path, "notices", 0, closed=False)


def test_text_that_is_no_utf8_is_no_traceback(tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(struct.pack("<3i", 0, 3, 6)), pa.py_buffer(b"\xff\xfe\xfdtwo")]
    write(tmp_path, pa.Array.from_buffers(pa.string(), 2, buffers))
    with pytest.raises(RunFolderError, match="damaged"):
        read_table(tmp_path, "notices", 0, closed=False)
