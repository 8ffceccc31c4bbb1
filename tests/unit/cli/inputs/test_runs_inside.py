"""Runs in a folder: all of them are found, or it is said that there is too much to look at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardtoll.cli.inputs.inputs import sort_inputs
from shardtoll.cli.inputs.runs_inside import MOST_ENTRIES, TooMany, runs_inside
from shardtoll.ledger import TraceError
from tests.unit.cli.conftest import write_run


def crowd(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"{number}.bin").touch()


def test_runs_on_both_sides_of_a_folder_of_many_files_are_found(tmp_path: Path):
    for name in ("a/run1", "c/run2"):
        write_run(tmp_path / name)
    crowd(tmp_path / "b", 4_000)
    assert runs_inside(str(tmp_path)) == [f"{tmp_path}/a/run1", f"{tmp_path}/c/run2"]


@pytest.mark.parametrize("where", ["b", "b/deeper"])
def test_a_part_of_the_runs_is_not_taken_for_all(tmp_path: Path, where: str):
    for name in ("a/run1", "c/run2"):
        write_run(tmp_path / name)
    crowd(tmp_path / where, MOST_ENTRIES)
    with pytest.raises(TooMany, match="holds more than 5,000 files and folders") as told:
        sort_inputs([str(tmp_path)])
    assert told.value.hint == "name a run in there"
    assert len(str(told.value)) <= 300


def test_traces_that_cannot_be_read_beside_too_much(shardtoll, tmp_path: Path):
    write_run(tmp_path / "a" / "run1")
    (tmp_path / "rank0.json").write_text("{")
    crowd(tmp_path / "b", MOST_ENTRIES)
    ran = shardtoll("report", tmp_path, "--no-cache")
    assert ran.code == TraceError.exit_code
    (line,) = ran.err.splitlines()
    assert line.startswith(f"shardtoll: {tmp_path} holds more than 5,000 files and folders")
    assert "name a run in there: no trace there can be read" in line
    assert len(line) <= 300


def test_a_huge_folder_is_read_no_further_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = 0
    scandir = os.scandir

    class Counted:
        def __init__(self, folder: Path) -> None:
            self.entries = scandir(folder)

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self.entries.close()

        def __iter__(self) -> Counted:
            return self

        def __next__(self) -> os.DirEntry[str]:
            nonlocal read
            read += 1
            return next(self.entries)

    crowd(tmp_path / "b", 2 * MOST_ENTRIES)
    monkeypatch.setattr(os, "scandir", Counted)
    with pytest.raises(TooMany):
        runs_inside(str(tmp_path))
    assert read <= MOST_ENTRIES + 2
