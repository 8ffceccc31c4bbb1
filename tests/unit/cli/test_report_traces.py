"""`shardtoll report` on traces: what it takes, what it says of files it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

from tests import small_traces


def test_folder_glob_and_files_are_the_same_job(shardtoll, tmp_path: Path):
    folder = small_traces.write_job(tmp_path / "a", 3)
    files = sorted(folder.iterdir())
    texts = {
        shardtoll("report", *paths, "--json", "-j", jobs).out
        for paths, jobs in (([folder], 1), ([folder], 2), ([f"{folder}/*.json.gz"], 1), (files, 1))
    }
    (text,) = texts
    document = json.loads(text)
    assert document["run"]["source"] == "trace"
    assert document["run"]["ranks_seen"] == [0, 1, 2]
    assert len(document["collectives"]) == 6


def test_files_named_one_by_one_are_one_source_of_an_output(shardtoll, tmp_path: Path):
    files = sorted(small_traces.write_job(tmp_path / "a", 2).iterdir())
    ran = shardtoll("report", *files, "-o", tmp_path / "x.json")
    assert ran.code == 0
    assert json.loads((tmp_path / "x.json").read_text())["run"]["world_size"] == 2


def test_what_is_left_out_is_said_on_stderr_and_in_the_notices(shardtoll, tmp_path: Path):
    folder = small_traces.write_job(tmp_path / "a", 9)
    for rank in range(1, 8):
        (folder / f"rank{rank}.json.gz").write_bytes(b"\x1f\x8bnot a trace")
    ran = shardtoll("report", folder, "--json", "-j", 1)
    assert ran.code == 0
    lines = ran.err.splitlines()
    assert lines == ["left out: 7 files, named with their reasons in the report's notices"]
    kinds = [row["kind"] for row in json.loads(ran.out)["notices"]]
    assert kinds.count("file-unreadable") == 7


def test_a_mistaken_cluster_is_one_line(shardtoll, tmp_path: Path):
    ran = shardtoll("report", small_traces.write_job(tmp_path / "a", 2), "--dask", "nonsense://x")
    assert ran.code == 2
    assert ran.err.startswith("shardtoll: no Dask scheduler answers at nonsense://x: ")
    assert ran.err.count("\n") == 1
