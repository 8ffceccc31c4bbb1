"""Parquet files are read as they were written; a few bytes that stand for very many rows are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtoll.ledger.disk.run_files import table_path
from shardtoll.ledger.disk.run_reader import read_table
from shardtoll.ledger.disk.run_writer import RankWriter
from shardtoll.ledger.records.errors import RunFolderError, first_line
from shardtoll.ledger.records.value import Parameter
from shardtoll.ledger.tables import parquet
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from shardtoll.ledger.tables.tables import SCHEMAS, to_table
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


def test_regular_rows_of_a_long_run_are_read_as_the_writer_left_them(tmp_path: Path):
    """One row of each of 50,000 steps and 8 groups: more than two rows a byte."""
    steps, groups = 50_000, [f"dp{i}" for i in range(8)]
    rows = steps * len(groups)
    columns = {
        "step": np.repeat(np.arange(steps), len(groups)),
        "rank": np.zeros(rows, dtype=np.int64),
        "group": groups * steps,
        "issued": np.full(rows, 3),
        "recorded": np.full(rows, 3),
        "other_thread": pa.nulls(rows, pa.bool_()),
    }
    writer = RankWriter(tmp_path, 0, "one")
    writer.append_batches({"counts": pa.RecordBatch.from_pydict(columns, schema=SCHEMAS["counts"])})
    ledger = writer.close(replace(sample_reports.RUN, ranks_seen=(0,)), sample_reports.GROUPS)
    assert table_path(tmp_path, "counts", 0, closed=True).stat().st_size < rows / 2
    read = read_table(tmp_path, "counts", 0, closed=True)
    assert read.num_rows == rows
    assert read.equals(ledger.tables["counts"])


def test_parameters_of_a_thousand_ranks_are_read_as_they_were_written():
    ranks, names = 1_024, [f"layers.{i}.weight" for i in range(400)]
    row = Parameter(0, "w", "[64, 32]", "[64]", "float32", 64, True, True)
    rows = ranks * len(names)
    table = to_table("parameters", [row]).take(pa.array(np.zeros(rows, dtype=np.int64)))
    for place, values in {0: np.repeat(np.arange(ranks), len(names)), 1: names * ranks}.items():
        table = table.set_column(place, table.schema.field(place), pa.array(values))
    assert from_parquet(to_parquet(table)).equals(table)


@pytest.mark.parametrize("columns", [100, 101])
def test_a_few_bytes_do_not_stand_for_any_number_of_cells(monkeypatch, columns: int):
    assert parquet._MOST_BYTES == 16 << 30
    monkeypatch.setattr(parquet, "_MOST_BYTES", 100 * 8 * 10_000)
    zeros = pa.array(np.zeros(10_000, dtype=np.int64))
    data = packed(pa.table({f"c{i}": zeros for i in range(columns)}))
    assert data.size < 100_000
    if columns == 100:
        assert from_parquet(data).num_rows == 10_000
        return
    never_read(monkeypatch)
    with pytest.raises(ValueError, match=r"^claims 10,000 rows, 1,010,000 cells and [\d,]+ bytes$"):
        from_parquet(data)


def test_a_small_file_does_not_become_gigabytes_of_numbers(monkeypatch):
    never_read(monkeypatch)
    zeros = pa.array(np.zeros(1_500_000, dtype=np.int64))
    data = packed(pa.table({f"c{i}": zeros for i in range(200)}))
    assert data.size < 2_000_000
    with pytest.raises(ValueError, match=r"^claims 1,500,000 rows, 300,000,000 cells"):
        from_parquet(data)


def test_more_rows_than_any_run_has_are_refused_unread(monkeypatch):
    never_read(monkeypatch)
    data = packed(pa.table({"column": pa.array(np.zeros(1_000, dtype=np.bool_))}))
    monkeypatch.setattr(parquet, "_MOST_ROWS", 999)
    with pytest.raises(ValueError, match=r"^claims 1,000 rows, 1,000 cells and [\d,]+ bytes$"):
        from_parquet(data)


def test_one_long_text_of_many_rows_is_refused_before_it_is_there_for_each(monkeypatch):
    most: list[int] = []
    sound = parquet.sound
    monkeypatch.setattr(parquet, "sound", lambda table: most.append(table.nbytes) or sound(table))
    data = packed(rows_of(1_500, "x" * 900_000))
    assert data.size < 100_000
    with pytest.raises(ValueError, match=r"holds 1,35\d,\d\d\d,\d\d\d bytes of text$"):
        from_parquet(data)
    assert most
    assert max(most) < 10_000_000


FOREIGN = {
    "binary": pa.array([b"x" * 1_000], pa.binary()),
    "struct<text: string>": pa.array([{"text": "x" * 1_000}]),
    "list<element: int64>": pa.array([[1] * 1_000]),
    "list<element: string>": pa.array([["x" * 1_000]]),
    "timestamp[ns]": pa.array([1], pa.timestamp("ns")),
    "decimal128(5, 2)": pa.array([1], pa.decimal128(5, 2)),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_column_of_a_type_that_no_table_has_is_refused_unread(monkeypatch, kind: str):
    never_read(monkeypatch)
    data = packed(pa.table({"column": FOREIGN[kind]}).take(pa.array(np.zeros(10_000, dtype=np.int64))))
    with pytest.raises(ValueError, match=rf"^holds a column of type {re.escape(kind)}$"):
        from_parquet(data)


def test_a_deep_type_is_named_in_one_short_line(monkeypatch):
    never_read(monkeypatch)
    data = packed(pa.table({"column": pa.array([{f"field{i}\n": 1 for i in range(150)}])}))
    with pytest.raises(ValueError, match=r"^holds a column of type struct<field0") as caught:
        from_parquet(data)
    assert len(first_line(caught.value)) < 100


def test_a_file_of_very_many_columns_is_refused_unread(monkeypatch):
    never_read(monkeypatch)
    data = packed(pa.table({f"c{i}": pa.array(np.zeros(1_000, dtype=np.int64)) for i in range(1_000)}))
    with pytest.raises(ValueError, match=r"^claims 1,000 columns$"):
        from_parquet(data)


def never_read(monkeypatch) -> None:
    """Let the test fail if a row is read."""

    def read(*_args: object, **_settings: object) -> pa.Table:
        raise AssertionError("rows were read")

    monkeypatch.setattr(pq.ParquetFile, "read", read)


def test_every_table_has_columns_far_below_what_may_be_read():
    assert max(map(len, SCHEMAS.values())) < parquet._MOST_COLUMNS / 3


def test_such_a_file_of_a_run_is_refused_in_one_line(tmp_path: Path):
    path = table_path(tmp_path, "collectives", 0, closed=True)
    path.write_bytes(packed(rows_of(5_000, "x" * 900_000)))
    with pytest.raises(RunFolderError) as caught:
        read_table(tmp_path, "collectives", 0, closed=True)
    assert "is damaged or cut short (holds 4,50" in caught.value.message
    assert len(str(caught.value)) < 300
