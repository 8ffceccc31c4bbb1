"""A Dask cluster of two worker processes: the report of the pool, byte for byte, and no rank lost."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardtoll.ledger import UsageError, analyze
from shardtoll.profiler.traces import Job, read_traces
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.job.dask_executor import Dask
from shardtoll.profiler.traces.job.executor import DIED
from shardtoll.profiler.traces.job.task import Options, Task, TaskResult, Work, run_task
from tests.small_traces import write_job
from tests.unit.profiler.traces import workers

pytestmark = pytest.mark.timeout(120)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Dask's own start and end warn of things that are not ours, as of ports in use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def cluster(n_workers: int, **options: Any) -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")
    with quiet():
        made = distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=50,
            **options,
        )
    try:
        yield made.scheduler_address
    finally:
        with quiet():
            made.close(timeout=10)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster(2) as scheduler:
        yield scheduler


def read(folder: Path, work: Work = run_task, **options: Any) -> Job:
    (job,) = read_traces([str(folder)], cache=False, work=work, **options)
    return job


def test_the_same_report_byte_for_byte(tmp_path: Path, address: str):
    folder = write_job(tmp_path, 6)
    (folder / "rank4.json.gz").write_bytes(b"broken")
    texts = {
        analyze(read(folder, **options).ledger).to_json()
        for options in ({"jobs": 1}, {"jobs": 2}, {"dask": address})
    }
    assert len(texts) == 1
    assert '"ranks_seen":[0,1,2,3,5]' in texts.pop()


def test_the_cache_is_shared(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHARDTOLL_CACHE", str(tmp_path / "cache"))
    folder = write_job(tmp_path / "job", 3)
    (first,) = read_traces([str(folder)], dask=address)
    assert len(list((tmp_path / "cache").iterdir())) == 3

    def refuse(task: Task) -> Any:
        raise AssertionError("read again")

    (second,) = read_traces([str(folder)], jobs=1, work=refuse)
    assert second == first


def test_a_killed_workers_rank_is_retried(tmp_path: Path, address: str):
    folder = write_job(tmp_path, 4)
    job = read(folder, workers.killed_once, dask=address)
    assert (folder / "rank1.json.gz.begun").exists()
    assert job == read(folder, jobs=1)


def test_a_task_that_kills_every_worker_is_told(tmp_path: Path, address: str):
    folder = write_job(tmp_path, 4)
    job = read(folder, workers.killed_always, dask=address)
    assert job.ledger.run.ranks_seen == (0, 2, 3)
    assert job.set_aside == ((f"{folder}/rank1.json.gz", DIED),)


def test_tasks_that_were_only_beside_the_one_that_kills_are_read(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
):
    folder = write_job(tmp_path, 4)
    result, blamed = Dask._result, []

    def blaming(self: Dask, future: Any, task: Task) -> TaskResult:
        if task.file.address.endswith(("rank1.json.gz", "rank3.json.gz")) and len(blamed) < 3:
            blamed.append(task.file.address)
            return TaskResult(task.file.address, reason=DIED)
        return result(self, future, task)

    # Both in the first pass; of the second, one at a time, the first again.
    monkeypatch.setattr(Dask, "_result", blaming)
    job = read(folder, dask=address)
    assert blamed[2] in blamed[:2]
    assert {path for path, _ in job.set_aside} == {blamed[2]}
    assert len(job.ledger.run.ranks_seen) == 3


class LostOnce:
    """A result whose worker dies between its end and our look at it; the scheduler makes it again."""

    def __init__(self, *statuses: str):
        self.statuses = list(statuses)

    @property
    def status(self) -> str:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def exception(self) -> None:
        return None

    def result(self) -> str:
        return "the result"

    def release(self) -> None:
        pass


def test_a_result_lost_with_its_worker_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("distributed", reason="the dask extra is not installed")
    future = LostOnce("lost", "pending", "finished")
    monkeypatch.setattr(Dask, "_done", lambda self, client, futures: futures)
    client: Any = SimpleNamespace(submit=lambda *_, **__: future, nthreads=dict)
    task: Any = "a task"
    assert list(Dask("tcp://x:1")._pass(client, run_task, [task], 1)) == [(task, "the result")]


def test_a_cluster_without_workers(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch):
    # As if no worker were there: a second cluster in one process does not always start.
    monkeypatch.setattr(Dask, "_done", lambda *_: [])
    monkeypatch.setattr(Dask, "_workers", lambda *_: False)
    (file,) = find([str(write_job(tmp_path, 1) / "rank0.json.gz")])
    with pytest.raises(UsageError, match="has no workers"):
        list(Dask(address, idle_s=0.2).run(run_task, [Task(file, "x", Options("x"))]))


# What follows leaves failed clients behind; one that starts after them does not always get its loop.


def test_nobody_answers(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    began_s = time.monotonic()
    (file,) = find([str(write_job(tmp_path, 1) / "rank0.json.gz")])
    with pytest.raises(UsageError, match=rf"no Dask scheduler answers at tcp://127.0.0.1:{port}"):
        list(Dask(f"tcp://127.0.0.1:{port}", answer_s=0.5).run(run_task, [Task(file, "x", Options("x"))]))
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("address", ["nonsense://x", "tcp://", "127.0.0.1:port", ""])
def test_no_address(tmp_path: Path, address: str):
    with pytest.raises(UsageError, match="no Dask scheduler answers at"):
        read(write_job(tmp_path, 2), dask=address)


def test_dask_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError) as caught:
        read(write_job(tmp_path, 2), dask="tcp://127.0.0.1:1")
    assert str(caught.value) == ("--dask needs Dask, which is not installed: pip install 'shardtoll[dask]'")
