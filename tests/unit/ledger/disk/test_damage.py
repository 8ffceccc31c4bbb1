"""Damaged and foreign files in a run folder: one line that says what, where and what to do."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtoll.ledger import RunFolderError, SchemaError, read_run
from shardtoll.ledger.disk.follow import Follower
from shardtoll.ledger.disk.run_files import STORE_VERSION
from shardtoll.ledger.tables.tables import DRY, SCHEMAS

HINT = "run the job again, or remove that rank's files to report the others"


@pytest.fixture
def folder(make, tmp_path):
    make.written(tmp_path, 0)
    return make.written(tmp_path, 1)


def _refused(folder) -> RunFolderError:
    with pytest.raises(RunFolderError) as caught:
        read_run(folder)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("table", [table for table in SCHEMAS if table not in DRY])
def test_a_parquet_file_cut_anywhere_is_refused(folder, table):
    path = folder / f"{table}.rank00001.parquet"
    data = path.read_bytes()
    for cut in [0, 3, 4, *range(5, len(data) - 1, len(data) // 9), len(data) - 1]:
        path.write_bytes(data[:cut])
        error = _refused(folder)
        assert error.message.startswith(f"{path} is damaged or cut short ("), cut
        assert error.hint == HINT


@pytest.mark.parametrize(
    "content", [b"not parquet at all, but long enough", b"PAR1" + b"\x00" * 40 + b"PAR1"]
)
def test_garbage_is_refused(folder, content):
    path = folder / "steps.rank00000.parquet"
    path.write_bytes(content)
    assert _refused(folder).message.startswith(f"{path} is damaged or cut short (")


def test_a_missing_table_is_not_an_empty_one(folder):
    path = folder / "collectives.rank00000.parquet"
    path.unlink()
    error = _refused(folder)
    assert (error.message, error.hint) == (f"{path} is missing", HINT)


def test_a_missing_journal_of_an_open_rank_is_not_an_empty_one(make, tmp_path):
    make.written(tmp_path, closed=False)
    path = tmp_path / "collectives.rank00000.arrows"
    path.unlink()
    assert _refused(tmp_path).message == f"{path} is missing"


def test_a_journal_of_other_columns_is_refused(make, tmp_path):
    make.written(tmp_path, closed=False)
    (tmp_path / "counts.rank00000.arrows").replace(tmp_path / "steps.rank00000.arrows")
    (tmp_path / "counts.rank00000.arrows").write_bytes(b"")
    assert "holds other columns than this shardtoll's steps" in _refused(tmp_path).message


def test_a_column_that_is_missing_or_of_another_type_is_refused(folder):
    path = folder / "collectives.rank00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["op"]), path)
    assert _refused(folder).message.startswith(f"{path} is damaged or cut short (")
    index = table.schema.get_field_index("rank")
    pq.write_table(table.set_column(index, "rank", pa.array(["zero"] * table.num_rows)), path)
    assert _refused(folder).message.startswith(f"{path} is damaged or cut short (")


def test_a_null_that_must_be_known_is_refused(folder):
    path = folder / "collectives.rank00000.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("op")
    pq.write_table(table.set_column(index, "op", pa.nulls(table.num_rows, pa.string())), path)
    assert "'op' with null values" in _refused(folder).message


def test_columns_that_a_later_patch_adds_are_ignored(folder):
    before = read_run(folder)
    path = folder / "steps.rank00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("extra", pa.nulls(table.num_rows, pa.int64())), path)
    assert read_run(folder) == before


@pytest.mark.parametrize("version", [STORE_VERSION + 1, 0, "1"])
def test_another_store_version_is_refused(folder, version):
    path = folder / "run.rank00001.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "store_version": version}))
    with pytest.raises(SchemaError) as caught:
        read_run(folder)
    assert caught.value.message == f"{path} has store version {version}, this shardtoll reads {STORE_VERSION}"
    assert caught.value.hint == "upgrade shardtoll, or run the job again with this version"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '"run"', "\x00\x01"])
def test_a_run_file_that_is_none_is_refused(folder, content):
    path = folder / "run.rank00001.json"
    path.write_text(content)
    error = _refused(folder)
    assert error.message.startswith(f"{path} is damaged (")
    assert error.hint == HINT


@pytest.mark.parametrize("name", ["run.rank00001.json", "steps.rank00001.parquet"])
def test_a_pipe_or_device_by_the_name_of_a_file_is_refused_and_not_waited_for(folder, name):
    path = folder / name
    for make_other in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make_other(path)
        error = _refused(folder)
        assert error.message.startswith(f"{path} is damaged")
        assert "not a regular file" in error.message
        with pytest.raises(RunFolderError, match="not a regular file"):
            Follower(folder).read()


def test_a_pipe_by_the_name_of_a_journal_is_refused_and_not_waited_for(make, tmp_path):
    make.written(tmp_path, closed=False)
    path = tmp_path / "collectives.rank00000.arrows"
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in _refused(tmp_path).message
    with pytest.raises(RunFolderError, match="not a regular file"):
        Follower(tmp_path).read()


def test_a_run_file_larger_than_any_is_refused_unread(folder):
    path = folder / "run.rank00001.json"
    os.truncate(path, 3 << 30)
    assert "larger than 256,000,000 bytes" in _refused(folder).message


@pytest.mark.parametrize("field", ["run", "groups", "findings", "closed"])
def test_a_run_file_that_lacks_a_field_is_refused(folder, field):
    path = folder / "run.rank00001.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in meta.items() if name != field}))
    assert _refused(folder).message == f"{path} is damaged ('{field}')"


@pytest.mark.parametrize("field", ["run", "groups", "findings"])
@pytest.mark.parametrize("value", [[1], None, {"a": 1}, "text"])
def test_a_run_file_with_an_unfit_field_is_refused(folder, field, value):
    path = folder / "run.rank00001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert _refused(folder).message.startswith(f"{path} is damaged (")


def test_a_rank_outside_its_job_is_refused(folder):
    for path in folder.glob("*.rank00001.*"):
        path.rename(folder / path.name.replace("00001", "00009"))
    assert "ranks [9] in a job of 4" in _refused(folder).message


def test_the_error_line_is_the_one_the_command_line_prints(folder):
    path = folder / "steps.rank00000.parquet"
    path.write_bytes(b"")
    error = _refused(folder)
    assert str(error) == f"{error.message}: {HINT}"


def test_steps_that_a_file_holds_twice_are_refused(folder):
    path = folder / "steps.rank00000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    with pytest.raises(RunFolderError, match="holds 2 rows of steps that it has already"):
        read_run(folder)


def test_a_folder_whose_name_is_no_utf8_is_read(folder):
    renamed = folder.with_name(os.fsdecode(b"run\xff\xfe"))
    folder.rename(renamed)
    assert read_run(renamed).tables["steps"].num_rows


@pytest.mark.parametrize(
    ("table", "name", "value"), [("counts", "issued", 2**63 - 1), ("steps", "idle_ns", 10**16)]
)
def test_amounts_whose_sum_would_overflow_are_refused(folder, table, name, value):
    path = folder / f"{table}.rank00000.parquet"
    rows = pq.read_table(path).slice(0, 1)
    many = pa.concat_tables([rows] * 500)
    place = many.schema.get_field_index(name)
    many = many.set_column(
        place, many.schema.field(place), pa.array([value] * 500, many.schema.field(place).type)
    )
    pq.write_table(many, path)
    with pytest.raises(RunFolderError, match=rf"{table}\.{name} adds up to more than 4e\+18"):
        read_run(folder)


def test_a_text_of_megabytes_that_a_small_file_holds_is_refused(folder):
    path = folder / "collectives.rank00000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("group")
    texts = pa.array(["x" * 2_000_000] * table.num_rows, table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), texts), path, compression="zstd")
    assert path.stat().st_size < 200_000
    assert "group holds a text of 2,000,000 bytes" in str(_refused(folder))
