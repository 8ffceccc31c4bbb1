"""`shardtoll report` on exports of Nsight Systems."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.nsys_exports import write_rank


def test_a_folder_of_exports_is_one_job(shardtoll, tmp_path: Path):
    for rank in range(2):
        write_rank(tmp_path, rank)
    (tmp_path / "report.nsys-rep").write_bytes(b"QDREP")
    document = json.loads(shardtoll("report", tmp_path, "--json").out)
    assert document["run"]["ranks_seen"] == [0, 1]
    assert [row["op"] for row in document["collectives"]] == ["all_reduce"] * 2
    again = json.loads(shardtoll("report", tmp_path, "--json").out)
    assert again == document


def test_texts_of_the_file_are_shown_without_control_characters(shardtoll, tmp_path: Path):
    ran = shardtoll("report", write_rank(tmp_path, kernel="\x1b[31mevil\x1b[0m\nallreduce"), "--no-cache")
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err


def test_damage_and_other_databases_are_one_line(shardtoll, tmp_path: Path):
    path = write_rank(tmp_path)
    path.write_bytes(path.read_bytes()[:6000])
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE users (name)")
    database.close()
    for file, what in ((path, "is a damaged SQLite database"), (other, "none of Nsight Systems")):
        ran = shardtoll("report", file, "--no-cache")
        assert ran.code == 2
        assert what in ran.err
        assert ran.err.count("\n") == 1


def test_a_report_that_was_not_exported_says_how_to(shardtoll, tmp_path: Path):
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"QDREP" + bytes(100))
    ran = shardtoll("report", path, "--no-cache")
    assert ran.code == 2
    assert "nsys export --type sqlite" in ran.err
