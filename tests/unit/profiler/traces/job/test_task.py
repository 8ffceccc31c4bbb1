"""One worker's task: a file in, the path of a result or a reason out, small enough to send."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shardtoll.ledger import TraceError
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.job import cache, entry
from shardtoll.profiler.traces.job.executor import run_apart
from shardtoll.profiler.traces.job.task import Options, Task, rank_task, run_task
from tests.small_traces import trace, write

OPTIONS = Options("digest")


def test_the_result_is_written_and_read_back(tmp_path: Path):
    (file,) = find([str(write(tmp_path / "rank1.json", trace(1, 2)))])
    result = run_apart(run_task, Task(file, str(tmp_path), OPTIONS))
    assert result.path == str(cache.entry_path(tmp_path, file, "digest"))
    found = entry.read(Path(result.path))
    assert (found.rank, found.facts.world_size, found.facts.address) == (1, 2, file.address)
    assert found.facts.end_ns - found.facts.start_ns == 1_999_000
    assert found.ledger.tables["steps"].num_rows == 2
    assert len(pickle.dumps(result)) < 1000
    again = run_task(Task(file, str(tmp_path), OPTIONS))
    assert again.entry == found
    assert entry.read(Path(again.path or "")) == found


def test_without_a_folder_the_result_stays_in_memory(tmp_path: Path):
    (file,) = find([str(write(tmp_path / "rank1.json", trace(1, 2)))])
    result = run_task(Task(file, None, OPTIONS))
    assert result.path is None
    assert result.entry is not None
    assert result.entry.rank == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rank1.json"]


def test_a_reason_is_one_line(tmp_path: Path):
    (file,) = find([str(write(tmp_path / "rank1.json", trace(1, 2)))])

    def refuse(_: object) -> object:
        raise TraceError("two\nlines", "do\nthis")

    result = rank_task(Task(file, None, OPTIONS), read=refuse)  # type: ignore[arg-type]
    assert (result.path, result.reason, result.hint) == (None, "two lines", "do this")


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path):
    (file,) = find([str(write(tmp_path / "rank1.json", trace(1, 2)))])
    result = run_task(Task(file, str(tmp_path / "no"), OPTIONS))
    assert result.path is None
    assert result.reason == (f"its result cannot be written to {tmp_path}/no (No such file or directory)")


def test_running_out_of_memory_is_for_the_executor(tmp_path: Path):
    (file,) = find([str(write(tmp_path / "rank1.json", trace(1, 2)))])

    def burst(_: object) -> object:
        raise MemoryError

    with pytest.raises(MemoryError):
        rank_task(Task(file, str(tmp_path), OPTIONS), read=burst)  # type: ignore[arg-type]
    assert list(tmp_path.glob(f"*{entry.SUFFIX}*")) == []
