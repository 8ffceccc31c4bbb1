"""A run folder written, read back, mixed up and misused; what happens to a killed rank is in test_kill.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.ledger import Ledger, RankWriter, RunFolderError, StepRows, merge, read_run
from shardtoll.ledger.disk.run_files import clear, is_run_folder, ranks_in
from shardtoll.ledger.disk.run_reader import read_rank
from shardtoll.ledger.disk.run_writer import write_rank
from shardtoll.ledger.tables.tables import to_records


def test_what_was_written_is_read_back(make, tmp_path):
    for rank in range(3):
        make.written(tmp_path, rank, steps=2)
    expected = merge([make.ledger(rank, steps=2) for rank in range(3)])
    assert read_run(tmp_path) == expected
    assert expected.run.ranks_missing == (3,)


def test_close_returns_what_the_folder_holds(make, tmp_path):
    writer = RankWriter(tmp_path / "deep" / "er", 0, "one")
    writer.append(make.rows(0))
    closed = writer.close(make.run(), [make.group()], [make.finding()])
    assert closed == read_rank(tmp_path / "deep" / "er", 0) == make.ledger(steps=1)


def test_a_closed_rank_leaves_one_parquet_file_a_table_and_no_journal(make, tmp_path):
    make.written(tmp_path, rank=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "collectives.rank00003.parquet",
        "computes.rank00003.parquet",
        "counts.rank00003.parquet",
        "device_ops.rank00003.parquet",
        "events.rank00003.parquet",
        "leadups.rank00003.parquet",
        "notices.rank00003.parquet",
        "parameters.rank00003.parquet",
        "run.rank00003.json",
        "stalls.rank00003.parquet",
        "steps.rank00003.parquet",
        "values.rank00003.parquet",
    ]


def test_steps_appended_together_are_those_appended_one_by_one(make, tmp_path):
    rows = [make.rows(0), make.rows(1), make.rows(2)]
    together, single = RankWriter(tmp_path / "a", 0, "one"), RankWriter(tmp_path / "b", 0, "one")
    together.append(*rows)
    for each in rows:
        single.append(each)
    ledgers = [writer.close(make.run(), [make.group()]) for writer in (together, single)]
    assert ledgers[0].tables["steps"].num_rows == 3
    assert all(ledgers[0].tables[name].equals(table) for name, table in ledgers[1].tables.items())


def test_rows_from_outside_every_step_are_kept(make, tmp_path):
    outside = StepRows(step=None, collectives=(make.collective(step=None, op="barrier"),))
    for closed in (True, False):
        writer = RankWriter(tmp_path / str(closed), 0, "one")
        writer.describe(make.run(), [make.group()])
        writer.append(outside)
        if closed:
            writer.close(make.run(), [make.group()])
        else:
            writer.abandon()
        tables = read_run(tmp_path / str(closed)).tables
        assert to_records("collectives", tables["collectives"]) == list(outside.collectives)
        assert tables["steps"].num_rows == 0


def test_an_abandoned_rank_reads_as_one_that_died(make, tmp_path):
    make.written(tmp_path, steps=2, closed=False)
    ledger = read_run(tmp_path)
    assert ledger.tables["steps"].num_rows == 2
    notice = to_records("notices", ledger.tables["notices"])[-1]
    assert (notice.kind, notice.rank) == ("rank-incomplete", 0)
    assert notice.text == "rank 0 ended before its session closed; finished steps counted: 2"


def test_describe_may_be_called_as_more_becomes_known(make, tmp_path):
    writer = RankWriter(tmp_path, 0, "one")
    writer.describe(make.run(mesh={}), [])
    writer.describe(make.run(mesh={"tp": 4}), [make.group()])
    writer.abandon()
    ledger = read_run(tmp_path)
    assert ledger.run.mesh == {"tp": 4}
    assert ledger.groups == (make.group(),)


def test_a_death_in_mid_description_leaves_the_earlier_one(make, tmp_path, monkeypatch):
    writer = RankWriter(tmp_path, 0, "one")
    writer.describe(make.run(), [make.group()])
    whole = Path.write_bytes

    def half(path, data):
        whole(path, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        writer.describe(make.run(mesh={"dp": 4}), [])
    writer.abandon()
    ledger = read_run(tmp_path)
    assert ledger.run.mesh == {"tp": 4}
    assert ledger.groups == (make.group(),)


def test_clear_leaves_foreign_files_alone(make, tmp_path):
    make.written(tmp_path, 0)
    make.written(tmp_path, 1, closed=False)
    (tmp_path / "steps.rank00000.parquet.part").write_bytes(b"half")
    ours = set(tmp_path.iterdir())
    foreign = [
        "notes.txt",
        "run.json",
        "steps.parquet",
        "run.rank0.json",
        "run.rank00000.json.bak",
        "my-run.rank00000.json",
        "losses.rank00000.parquet",
        "steps.rank00000.csv",
    ]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "run.rank00000.json").write_text("mine")
    clear(tmp_path, rank=0)
    left = {path for path in ours if path.exists()}
    assert left == {path for path in ours if "rank00001" in path.name}
    clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*foreign, "checkpoints"])
    assert (tmp_path / "checkpoints" / "run.rank00000.json").read_text() == "mine"
    clear(tmp_path / "never-made")


def test_a_rank_that_starts_again_replaces_its_earlier_files(make, tmp_path):
    make.written(tmp_path, steps=3)
    make.written(tmp_path, steps=1, run_id="two", closed=False)
    assert read_run(tmp_path).tables["steps"].num_rows == 1


def test_ranks_and_run_folders_are_recognised(make, tmp_path):
    assert not is_run_folder(tmp_path)
    assert not is_run_folder(tmp_path / "none")
    make.written(tmp_path, rank=12, world_size=123457)
    make.written(tmp_path, rank=123456, world_size=123457)
    assert ranks_in(tmp_path) == [12, 123456]
    assert is_run_folder(tmp_path)
    assert not is_run_folder(tmp_path / "run.rank00012.json")


def test_gathered_ranks_are_written_beside_the_own_one(make, tmp_path):
    make.written(tmp_path, 0)
    write_rank(tmp_path, make.ledger(1), "one")
    assert read_run(tmp_path) == merge([make.ledger(0), make.ledger(1)])


def test_a_gathered_rank_never_replaces_that_ranks_own_files(make, tmp_path):
    make.written(tmp_path, 1, steps=3)
    write_rank(tmp_path, make.ledger(1, steps=1), "one")
    assert read_run(tmp_path).tables["steps"].num_rows == 3


def test_a_gathered_rank_replaces_files_an_earlier_run_left(make, tmp_path):
    make.written(tmp_path, 1, steps=3, run_id="yesterday", closed=False)
    make.written(tmp_path, 0)
    write_rank(tmp_path, make.ledger(1), "one")
    assert read_run(tmp_path) == merge([make.ledger(0), make.ledger(1)])
    assert not list(tmp_path.glob("*.arrows"))


@pytest.mark.parametrize(
    ("second", "reason"),
    [({"run_id": "two"}, "2 run ids"), ({"world_size": 8}, r"jobs of different world sizes \[4, 8\]")],
)
def test_mixed_runs_are_refused(make, tmp_path, second, reason):
    make.written(tmp_path, 0)
    make.written(tmp_path, 1, **second)
    with pytest.raises(RunFolderError, match=reason) as caught:
        read_run(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path} mixes files of several runs")
    assert caught.value.hint == (
        "write each run to a folder of its own, and empty this one before it is used again"
    )


def test_no_folder_and_no_run_say_so(tmp_path):
    hint = "name the folder given as out= to audit()"
    with pytest.raises(RunFolderError) as none:
        read_run(tmp_path / "none")
    assert (none.value.message, none.value.hint) == (f"no run folder at {tmp_path / 'none'}", hint)
    with pytest.raises(RunFolderError) as empty:
        read_run(tmp_path)
    assert (empty.value.message, empty.value.hint) == (f"{tmp_path} holds no shardtoll run", hint)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"run folder .*file cannot be made \(File exists\)"):
        RankWriter(tmp_path / "file", 0, "one")
    with pytest.raises(
        RunFolderError, match=r"^run folder .*a cannot be made \(Not a directory\): name another"
    ):
        RankWriter(tmp_path / "file" / "a", 0, "one")


def test_a_folder_whose_file_is_in_the_way_is_named(tmp_path):
    (tmp_path / "steps.rank00000.arrows").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot be written \(Is a directory\)"):
        RankWriter(tmp_path, 0, "one")


@pytest.mark.parametrize("spoil", ["remove", "cut"])
def test_a_journal_that_someone_spoiled_is_not_closed_as_if_whole(make, tmp_path, spoil):
    writer = RankWriter(tmp_path, 0, "one")
    writer.describe(make.run(), [])
    writer.append(make.rows(0))
    journal = tmp_path / "collectives.rank00000.arrows"
    if spoil == "remove":
        journal.unlink()
    else:
        journal.write_bytes(b"")
    with pytest.raises(RunFolderError, match="cannot be finished"):
        writer.close(make.run(), [])
    assert json.loads((tmp_path / "run.rank00000.json").read_text())["closed"] is False


def test_a_mesh_may_be_any_mapping(make, tmp_path):
    """A read-only view cannot be deep-copied, as dataclasses.asdict would."""
    from types import MappingProxyType

    make.written(tmp_path, mesh=MappingProxyType({"dp": 2, "tp": 2}))
    assert dict(read_run(tmp_path).run.mesh) == {"dp": 2, "tp": 2}


def test_findings_made_while_the_job_ran_are_kept(make, tmp_path):
    make.written(tmp_path)
    assert isinstance(read_run(tmp_path), Ledger)
    assert read_run(tmp_path).findings == (make.finding(),)
