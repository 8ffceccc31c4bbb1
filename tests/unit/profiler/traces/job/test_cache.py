"""What was read is kept, and never trusted further than its checks go."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardtoll.profiler.traces import read_traces
from shardtoll.profiler.traces.job import cache, entry
from shardtoll.profiler.traces.job.task import Task, TaskResult, run_task
from tests.small_traces import trace, write, write_job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counted:
    """Work that counts the files it reads."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, task: Task) -> TaskResult:
        self.read.append(Path(task.file.address).name)
        return run_task(task)


def read(path: Path, **options: object) -> tuple[list[str], object]:
    work = Counted()
    (job,) = read_traces([str(path)], jobs=1, work=work, **options)  # type: ignore[arg-type]
    return sorted(work.read), (job.ledger.run, job.ledger.groups, job.ledger.tables, job.set_aside)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{entry.SUFFIX}"))


def test_a_second_report_reads_no_trace(tmp_path: Path, folder: Path):
    job = write_job(tmp_path / "job")
    names, first = read(job)
    assert names == ["rank0.json.gz", "rank1.json.gz"]
    assert len(entries(folder)) == 2
    names, second = read(job)
    assert names == []
    assert second == first


def test_a_changed_file_is_read_again(tmp_path: Path, folder: Path):
    job = write_job(tmp_path / "job")
    read(job)
    write(job / "rank1.json.gz", trace(1, 2, steps=(3, 4, 5)))
    names, _ = read(job)
    assert names == ["rank1.json.gz"]


def test_another_table_of_kernels_is_another_result(tmp_path: Path, folder: Path):
    job = write_job(tmp_path / "job")
    read(job)
    assert cache.digest(None) == cache.digest(None)
    path = tmp_path / "mine.toml"
    path.write_text("")
    empty = cache.digest(path)
    path.write_text("# changed")
    assert len({cache.digest(None), empty, cache.digest(path)}) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other", "packed"])
def test_damaged_entries_are_read_again(tmp_path: Path, folder: Path, damage: str):
    job = write_job(tmp_path / "job")
    _, first = read(job)
    path = entries(folder)[0]
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    elif damage == "other":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("rank.json", "{}")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("rank.json", "0" * 1000)
    names, again = read(job)
    assert len(names) == 1
    assert again == first
    assert read(job)[0] == []


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path, folder: Path):
    read(write(tmp_path / "rank0.json", trace(0, 1)))
    (path,) = entries(folder)
    whole = path.read_bytes()
    good = entry.read(path)
    noticed = 0
    for at in range(0, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            found = entry.read(path)
        except (ValueError, OSError):
            noticed += 1
        else:
            assert found == good
    assert noticed > len(whole) // 37 // 2


def test_no_cache_keeps_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    names, _ = read(write_job(tmp_path / "job"), cache=False)
    assert len(names) == 2
    assert not folder.exists()
    assert list(temporary.iterdir()) == []


def test_a_job_of_this_process_is_not_read_back(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def absent(path: Path) -> entry.Entry:
        raise FileNotFoundError(path)

    job = write_job(tmp_path / "job")
    with monkeypatch.context() as patched:
        patched.setattr(entry, "read", absent)
        _, first = read(job, cache=False)
        _, kept = read(job)
    assert len(entries(folder)) == 2
    assert first == kept == read(job)[1]


@pytest.mark.parametrize("stated", [(None, None, None), (4, None, None), (None, 4, 4)])
@pytest.mark.parametrize("named", [True, False])
def test_a_trace_without_world_size_is_read_once(
    tmp_path: Path, folder: Path, stated: tuple[int | None, ...], named: bool
):
    def made(rank: int, world_size: int | None) -> dict[str, Any]:
        content = trace(rank, world_size, group=(0, 1, 2) if named else None)
        for event in content["traceEvents"]:
            for name in () if named else [n for n in event["args"] if n.startswith(("Process Gr", "Group"))]:
                del event["args"][name]
        return content

    for rank, world_size in enumerate(stated):
        write(tmp_path / "job" / f"rank{rank}.json", made(rank, world_size))
        # What is worked out later for a job of four is what the reader says of a trace that states it.
        write(tmp_path / "all" / f"rank{rank}.json", made(rank, 4))
    names, first = read(tmp_path / "job")
    assert names == ["rank0.json", "rank1.json", "rank2.json"]
    names, again = read(tmp_path / "job")
    assert names == []
    assert again == first
    if any(stated):
        assert first == read(tmp_path / "all")[1]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "file" / "cache"))
    names, _ = read(write_job(tmp_path / "job"))
    assert len(names) == 2


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SHARDTOLL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "shardtoll" / "traces"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.root() == tmp_path / "home" / ".cache" / "shardtoll" / "traces"


def test_the_least_recently_used_entries_go_first(tmp_path: Path):
    for at, name in enumerate("abcd"):
        path = tmp_path / f"{name}{cache.REPORT_SUFFIX if name == 'b' else entry.SUFFIX}"
        path.write_bytes(b"x" * 100)
        os.utime(path, (at, at))
    os.utime(tmp_path / f"a{entry.SUFFIX}")
    old = [tmp_path / f"e{suffix}.0a.part" for suffix in (entry.SUFFIX, cache.REPORT_SUFFIX)]
    for path in (*old, tmp_path / "mine.txt", tmp_path / "mine.part"):
        path.write_bytes(b"y" * 1000)
        os.utime(path, (0, 0))
    cache.prune(tmp_path, limit_bytes=250)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"a{entry.SUFFIX}", f"d{entry.SUFFIX}", "mine.part", "mine.txt"]
