"""`shardtoll hang`: exit codes, files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardtoll.ledger.disk.run_files import flight_path
from tests.flights import write_flight
from tests.unit.cli.conftest import write_run


def hung(folder: Path, *, after_s: float = 0.001) -> None:
    """Write a run of two ranks: rank 1 ended, and rank 0 waits for it in its fourth all_reduce."""
    kept = write_flight(folder, 0, 4, state=None, hang_in=True, hang_after_s=after_s)
    write_flight(folder, 1, 3, hang_after_s=after_s)
    # All collectives were issued long ago: the times of these files are some us after the host's start.
    kept.beat(10**18, 0)


def test_a_hang_is_exit_code_1_with_files(shardtoll, tmp_path: Path):
    hung(tmp_path / "run")
    files = [tmp_path / f"hang{ending}" for ending in (".json", ".md", ".html")]
    ran = shardtoll("hang", tmp_path / "run", *(word for file in files for word in ("-o", file)))
    assert ran.code == 1
    assert "wrote" in ran.out
    told = json.loads(files[0].read_text())
    assert (told["schema_version"], told["hang"]) == (1, True)
    assert told["verdict"].startswith("Rank")
    assert told["findings"][0]["kind"] == "hang"
    assert "# shardtoll hang: hang" in files[1].read_text()
    page = files[2].read_text()
    assert "script-src 'none'" in page
    assert "<script" not in page


def test_none_is_exit_code_0(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_flight(tmp_path / "run", rank)
    ran = shardtoll("hang", tmp_path / "run")
    assert (ran.code, ran.err) == (0, "")
    assert "No hang: ranks 0 and 1 have finished." in ran.out


def test_folders_of_several_nodes_are_one_job(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_flight(tmp_path / f"node{rank}", rank)
    ran = shardtoll("hang", tmp_path / "node0", tmp_path / "node1", "--json")
    assert ran.code == 0
    assert [each["rank"] for each in json.loads(ran.out)["ranks"]] == [0, 1]


def test_a_folder_of_one_jobs_folders_is_that_job(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_flight(tmp_path / "all" / f"node{rank}" / "run", rank)
    (tmp_path / "all" / "calibration.log").write_text("no time-out here\n")
    ran = shardtoll("hang", tmp_path / "all", "--json")
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert [each["rank"] for each in told["ranks"]] == [0, 1]
    assert told["notes"] == []


def test_a_folder_of_several_jobs_names_their_folders_first(shardtoll, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        # Rank 0 of two runs.
        write_flight(Path("demo", name, "run"), 0)
    Path("demo", "calibration.log").write_text("no time-out here\n")
    ran = shardtoll("hang", "demo")
    assert ran.code == 2
    assert ran.err == (
        "shardtoll: demo holds 2 run folders of several jobs: "
        "name those of one job: demo/one/run demo/two/run\n"
    )


def test_a_damaged_file_that_was_named_is_a_note_beside_a_folder_of_folders(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_flight(tmp_path / "all" / f"node{rank}", rank)
    (tmp_path / "all" / "calibration.log").write_text("no time-out here\n")
    (tmp_path / "rank3_dump.pkl").write_bytes(b"\x80nonsense")
    ran = shardtoll("hang", tmp_path / "all", tmp_path / "rank3_dump.pkl", "--json")
    told = json.loads(ran.out)
    assert (ran.code, [each["rank"] for each in told["ranks"]]) == (0, [0, 1])
    (note,) = told["notes"]
    assert note.startswith(f"{tmp_path}/rank3_dump.pkl cannot be read")


def test_a_folder_of_too_much_is_not_taken_in_part(shardtoll, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("shardtoll.cli.inputs.runs_inside.MOST_ENTRIES", 50)
    write_flight(tmp_path / "a" / "run", 0)
    many = tmp_path / "b" / "many"
    many.mkdir(parents=True)
    for number in range(60):
        (many / str(number)).touch()
    ran = shardtoll("hang", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"shardtoll: {tmp_path} holds more than 50 files and folders, too many to look for runs: "
        "name a run in there\n"
    )


def test_a_damaged_file_is_a_note(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_flight(tmp_path / "run", rank)
    flight_path(tmp_path / "run", 1).write_bytes(b"nonsense")
    ran = shardtoll("hang", tmp_path / "run", "--width", 200)
    assert ran.code == 0
    assert "flight.rank00001.bin is damaged or cut short" in ran.out


def test_files_of_another_version_are_one_line(shardtoll, tmp_path: Path):
    write_flight(tmp_path / "run", 0)
    path = flight_path(tmp_path / "run", 0)
    path.write_bytes(path.read_bytes()[:8] + b"\x01" + path.read_bytes()[9:])
    for named in (path.parent, path):
        ran = shardtoll("hang", named)
        assert ran.code == 2
        (line,) = ran.err.splitlines()
        assert len(line) <= 300
        assert "by another version of shardtoll" in line
        assert "read it with the version of shardtoll that wrote it" in line


@pytest.mark.parametrize("width", [40, 80, 140])
def test_it_fits_every_width(shardtoll, tmp_path: Path, width: int):
    hung(tmp_path / "run")
    ran = shardtoll("hang", tmp_path / "run", "--width", width)
    assert max(map(len, ran.out.splitlines())) <= width


def test_what_cannot_be_read_is_exit_code_2(shardtoll, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for arguments in (
        ["hang", tmp_path / "none"],
        ["hang", tmp_path / "empty"],
        ["hang", tmp_path / "empty", "--after", "0"],
        ["hang", tmp_path / "empty", "-o", tmp_path / "x.txt"],
    ):
        ran = shardtoll(*arguments)
        assert ran.code == 2
        assert ran.err.startswith("shardtoll: ")
        assert len(ran.err.splitlines()) == 1


def test_the_bill_of_a_run_that_hung_says_so(shardtoll, tmp_path: Path):
    write_run(tmp_path / "run")
    for rank in range(4):
        write_flight(tmp_path / "run", rank, 4, world=4)
    assert "hang" not in shardtoll("report", tmp_path / "run", "--all").out.replace("change", "")
    hung(tmp_path / "run")
    assert "1 error hang" in shardtoll("report", tmp_path / "run", "--all", "--no-cache").out
