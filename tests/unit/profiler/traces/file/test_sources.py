"""What a user names becomes trace files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find, is_trace_input

EVENT = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}'
TRACE = b'{"traceEvents": [' + EVENT + b"]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "rank10.json",
        "rank2.json.gz",
        "deep/rank3.pt.trace.json",
        "notes.txt",
        "deep/er/rank4.json",
    ):
        path = tmp_path / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TRACE)
    return tmp_path / "job"


@pytest.fixture
def memory() -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for name in ("rank1.json", "rank0.json.gz", "readme.md"):
        system.pipe_file(f"/job/{name}", TRACE)
    yield "memory://job"
    system.rm("/job", recursive=True)


def names(paths: list[str]) -> list[str]:
    return [Path(file.address).name for file in find(paths)]


def test_a_folder_gives_its_traces_and_those_right_below_in_order_of_ranks(folder: Path) -> None:
    assert names([str(folder)]) == ["rank3.pt.trace.json", "rank2.json.gz", "rank10.json"]


def test_a_glob_gives_what_it_matches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names([str(folder / "rank*")]) == ["rank2.json.gz", "rank10.json"]
    monkeypatch.chdir(folder)
    assert [file.address for file in find(["rank1*.json"])] == ["rank10.json"]


def test_a_file_counts_whatever_its_name_and_only_once(folder: Path) -> None:
    notes = str(folder / "notes.txt")
    assert names([notes, notes]) == ["notes.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rank[0].json"
    path.write_bytes(TRACE)
    assert names([str(path)]) == ["rank[0].json"]


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(TRACE)
    before = find([str(path)])[0]
    assert find([str(path)])[0] == before
    assert before.size_bytes == len(TRACE)
    os.utime(path, ns=(1, 1))
    assert find([str(path)])[0].identity != before.identity


def test_addresses_are_listed_and_read_through_fsspec(memory: str) -> None:
    found = find([memory])
    assert [file.address for file in found] == ["memory:///job/rank0.json.gz", "memory:///job/rank1.json"]
    assert find([f"{memory}/rank1*"])[0].address == "memory:///job/rank1.json"
    trace = read_trace(find([f"{memory}/rank1.json"])[0])
    assert trace.device.end_ns.tolist() == [3000]
    assert trace.meta.rank == 1


def test_identity_of_an_address_changes_with_its_content(memory: str) -> None:
    before = find([f"{memory}/rank1.json"])[0]
    fsspec.filesystem("memory").pipe_file("/job/rank1.json", TRACE + b" ")
    assert find([f"{memory}/rank1.json"])[0].identity != before.identity


def test_what_the_command_line_takes_for_traces(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert is_trace_input(str(folder))
    assert is_trace_input("s3://bucket/job")
    assert is_trace_input("runs/*.json")
    assert not is_trace_input(str(tmp_path / "empty"))
    assert not is_trace_input(str(tmp_path / "missing"))


def test_what_cannot_be_found_is_told_in_one_line(folder: Path, memory: str) -> None:
    hint = "name a trace file, a folder or a glob of traces, or an address such as s3://bucket/traces"
    there = "check the address, your credentials and the network"
    empty = folder / "empty"
    empty.mkdir()
    for path, text in {
        str(folder / "no.json"): f"{folder}/no.json does not exist: {hint}",
        str(folder / "no*.json"): f"{folder}/no*.json matches no trace file: {hint}",
        str(empty): f"{empty} holds no trace files: traces end in .json, .json.gz, .json.zst or .sqlite",
        f"{memory}/no.json": f"{memory}/no.json does not exist: {hint}",
        f"{memory}/no*": f"{memory}/no* names no trace files: {hint}",
        "nosuch://x/y": f"nosuch://x/y cannot be reached (Protocol not known: nosuch): {there}",
        "data://x": f"data://x cannot be reached (not enough values to unpack (expected 2, got 1)): {there}",
    }.items():
        with pytest.raises(TraceError) as caught:
            find([path])
        assert str(caught.value) == text


def test_a_file_that_went_away_is_told_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(TRACE)
    found = find([str(path)])[0]
    path.unlink()
    with pytest.raises(TraceError, match=r"rank0\.json does not exist: name a trace file"):
        read_trace(found)
