"""Processes of this machine: the same report as without them, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardtoll.profiler.traces import Job, read_traces
from shardtoll.profiler.traces.job.executor import DIED, OUT_OF_MEMORY
from shardtoll.profiler.traces.job.task import Work, run_task
from tests.small_traces import write_job
from tests.unit.profiler.traces import workers


@pytest.fixture(autouse=True)
def nothing_left() -> object:
    yield
    assert multiprocessing.active_children() == []


def read(folder: Path, jobs: int, work: Work = run_task) -> Job:
    (job,) = read_traces([str(folder)], jobs=jobs, cache=False, work=work)
    return job


def test_the_same_ledger_as_in_process(tmp_path: Path):
    folder = write_job(tmp_path, 5)
    (folder / "rank3.json.gz").write_bytes(b"broken")
    alone, pooled = read(folder, 1), read(folder, 2)
    assert pooled == alone
    assert pooled.ledger.run.ranks_seen == (0, 1, 2, 4)


def test_a_killed_workers_rank_is_retried(tmp_path: Path):
    folder = write_job(tmp_path, 4)
    job = read(folder, 2, workers.killed_once)
    assert (folder / "rank1.json.gz.begun").exists()
    assert job == read(folder, 1)
    assert job.ledger.run.ranks_seen == (0, 1, 2, 3)


def test_a_task_that_kills_twice_is_told_and_the_others_are_not_lost(tmp_path: Path):
    folder = write_job(tmp_path, 6)
    job = read(folder, 2, workers.killed_always)
    assert job.ledger.run.ranks_seen == (0, 2, 3, 4, 5)
    assert job.set_aside == ((f"{folder}/rank1.json.gz", DIED),)


@pytest.mark.parametrize("jobs", [1, 2])
def test_out_of_memory_is_a_reason(tmp_path: Path, jobs: int):
    folder = write_job(tmp_path, 3)
    job = read(folder, jobs, workers.out_of_memory)
    assert job.set_aside == ((f"{folder}/rank1.json.gz", OUT_OF_MEMORY),)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_fault_of_ours_on_one_trace_does_not_lose_the_others(tmp_path: Path, jobs: int):
    folder = write_job(tmp_path, 3)
    job = read(folder, jobs, workers.faulty)
    assert job.ledger.run.ranks_seen == (0, 2)
    reason = "it could not be analysed (KeyError: 'what nobody thought of')"
    assert job.set_aside == ((f"{folder}/rank1.json.gz", reason),)


def test_a_script_need_not_guard_its_main_part(tmp_path: Path):
    folder = write_job(tmp_path / "job", 3)
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom shardtoll.profiler.traces import read_traces\n"
        "(job,) = read_traces([sys.argv[1]], jobs=2, cache=False)\n"
        "print(job.ledger.run.ranks_seen, job.set_aside)\n"
    )
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(0, 1, 2) ()\n", "")


PROGRAM = """
import sys
from shardtoll.profiler.traces import read_traces
from tests.unit.profiler.traces import workers

if __name__ == "__main__":
    read_traces([sys.argv[1]], jobs=2, cache=False, work=workers.slow)
"""


def begun(folder: Path) -> list[int]:
    """The processes that have begun to read, once there are two."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        texts = [path.read_text() for path in folder.glob("*.pid")]
        if len(texts) >= 2 and all(texts):
            return [int(text) for text in texts]
        time.sleep(0.05)
    raise AssertionError("no worker began")


def gone(process: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_ctrl_c_and_a_killed_parent_leave_no_process(tmp_path: Path, by: signal.Signals):
    folder = write_job(tmp_path / "job", 4)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[5]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, program, folder],
        env=environment,
        stderr=subprocess.PIPE,
        # A process group of its own, so that Ctrl-C reaches parent and workers as in a terminal.
        start_new_session=True,
    ) as parent:
        processes = begun(folder)
        if by == signal.SIGINT:
            os.killpg(parent.pid, by)
        else:
            parent.send_signal(by)
        began_s = time.monotonic()
        _, said = parent.communicate(timeout=30)
        # The workers sleep for a minute: they were not waited for.
        assert time.monotonic() - began_s < 30
    assert parent.returncode != 0
    assert said.count(b"Traceback") == (1 if by == signal.SIGINT else 0)
    assert all(gone(process) for process in processes)
