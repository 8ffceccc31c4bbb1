"""Parquet files are read as they were written; a few bytes that stand for very many rows are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtoll.ledger.disk.run_files import table_path
from shardtoll.ledger.disk.run_reader import read_table
from shardtoll.ledger.records.errors import RunFolderError
from shardtoll.ledger.tables import parquet
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from tests import sample_reports

TABLES = sample_reports.report().tables


def packed(table: pa.Table) -> pa.Buffer:
    """Return a table's bytes as another writer may pack them: one long text once for all rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def rows_of(count: int, module: str = "m") -> pa.Table:
    table = TABLES["collectives"].slice(0, 1).take(pa.array(np.zeros(count, dtype=np.int64)))
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([module]))
    return table.set_column(table.schema.get_field_index("module"), "module", texts)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_as_it_was_written(name: str):
    read = from_parquet(to_parquet(TABLES[name]))
    assert read.equals(TABLES[name])
    assert read.schema.equals(TABLES[name].schema)


def test_a_real_table_of_a_long_run_has_far_fewer_rows_and_texts_than_may_be_read():
    table = pa.concat_tables([TABLES["collectives"]] * 200)
    starts = np.random.default_rng(1).integers(1, 10**9, table.num_rows)
    table = table.set_column(table.schema.get_field_index("start_ns"), "start_ns", pa.array(starts))
    size = to_parquet(table).size
    texts = sum(len(value or "") for name in ("module", "source", "op") for value in table[name].to_pylist())
    assert table.num_rows < parquet._ROWS_A_BYTE * size
    assert texts < parquet._TEXT_A_BYTE * size / 10


@pytest.mark.parametrize("count", [1_000, 2_000_000])
def test_a_few_bytes_do_not_stand_for_millions_of_rows(count: int):
    data = packed(rows_of(count))
    assert data.size < 500_000
    if count == 1_000:
        assert from_parquet(data).num_rows == count
    else:
        with pytest.raises(ValueError, match=r"claims 2,000,000 rows of [\d,]+ bytes in [\d,]+$"):
            from_parquet(data)


def test_one_long_text_of_many_rows_is_refused_before_it_is_there_for_each(monkeypatch):
    most: list[int] = []
    sound = parquet.sound
    monkeypatch.setattr(parquet, "sound", lambda table: most.append(table.nbytes) or sound(table))
    data = packed(rows_of(2_000, "x" * 900_000))
    assert data.size < 50_000
    with pytest.raises(ValueError, match=r"holds 1,800,\d\d\d,\d\d\d bytes of text in [\d,]+$"):
        from_parquet(data)
    assert most
    assert max(most) < 5_000_000


def test_such_a_file_of_a_run_is_refused_in_one_line(tmp_path: Path):
    path = table_path(tmp_path, "collectives", 0, closed=True)
    path.write_bytes(packed(rows_of(2_000, "x" * 900_000)))
    with pytest.raises(RunFolderError) as caught:
        read_table(tmp_path, "collectives", 0, closed=True)
    assert "is damaged or cut short (holds 1,800," in caught.value.message
    assert len(str(caught.value)) < 300
